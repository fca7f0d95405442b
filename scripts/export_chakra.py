"""A workload as Chakra execution traces: ``export_chakra.py WORKLOAD --out DIR``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from simcore.apps.process import alone
from simcore.apps.run.finished import export_chakra

if __name__ == "__main__":
    alone(export_chakra)
