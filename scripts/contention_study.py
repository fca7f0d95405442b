"""Kernels beside communication: ``contention_study.py [TRACES...] [--cluster NAME] [--json]``."""

from __future__ import annotations

import sys

sys.path.insert(0, __file__.rsplit("scripts", 1)[0])

from simcore.apps.process import alone

if __name__ == "__main__":
    alone("simcore.apps.studies.contention.command:contention_study")
