"""Who does jobs: processes of this machine, or of many (Ray)."""

from simcore.apps.workers.local import LocalWorkers, each
from simcore.apps.workers.seam import Incumbent, Workers, chosen_workers

__all__ = ["Incumbent", "LocalWorkers", "Workers", "chosen_workers", "each"]
