"""Measure the GPU that torch sees: ``profile_gpu.py [--out DIR] [--minutes M] [--fit-only DIR] [--json]``."""

from __future__ import annotations

import sys

sys.path.insert(0, __file__.rsplit("scripts", 1)[0])

from simcore.apps.process import alone

if __name__ == "__main__":
    alone("simcore.apps.fit.profile.command:profile_gpu")
