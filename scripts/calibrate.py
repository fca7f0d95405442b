"""Fit constants: ``calibrate.py GENERATION --kernels CSV | --nccl CSV``, or ``--interference TRACES...``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from simcore.apps.fit.command import calibrate
from simcore.apps.process import alone

if __name__ == "__main__":
    alone(calibrate)
