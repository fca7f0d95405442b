"""Fit constants to measured rows: ``calibrate.py GENERATION --kernels CSV | --nccl CSV``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from simcore.calibrate.command import calibrate

if __name__ == "__main__":
    sys.exit(calibrate(sys.argv[1:]))
