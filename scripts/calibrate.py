"""Fit constants: ``calibrate.py GENERATION --kernels CSV | --nccl CSV``, or ``--interference TRACES...``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from simcore.apps.fit.command import calibrate
from simcore.apps.studies.contention.command import calibrate_interference

if __name__ == "__main__":
    learns = "--interference" in sys.argv[1:]
    sys.exit((calibrate_interference if learns else calibrate)(sys.argv[1:]))
