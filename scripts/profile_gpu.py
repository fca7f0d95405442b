"""Measure the GPU that torch sees: ``profile_gpu.py [--out DIR] [--minutes M] [--fit-only DIR] [--json]``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from simcore.apps.fit.profile.command import profile_gpu
from simcore.apps.process import alone

if __name__ == "__main__":
    alone(profile_gpu)
