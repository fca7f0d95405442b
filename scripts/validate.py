"""Predicted against measured: ``validate.py --kernels CSV | --layers CSV | --nccl CSV [--json]``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from simcore.apps.process import alone
from simcore.apps.validate.command import validate

if __name__ == "__main__":
    alone(validate)
