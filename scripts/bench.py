"""What the simulator itself costs: ``bench.py run|scale|imports|runs ...``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from simcore.apps.bench.command import app
from simcore.apps.process import alone

if __name__ == "__main__":
    alone(app)
