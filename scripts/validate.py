"""Predicted against measured: ``validate.py --kernels CSV | --layers CSV | --nccl CSV [--json]``."""

from __future__ import annotations

import sys

sys.path.insert(0, __file__.rsplit("scripts", 1)[0])

from simcore.apps.process import alone

if __name__ == "__main__":
    alone("simcore.apps.validate.command:validate")
