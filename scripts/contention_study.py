"""Kernels beside communication: ``contention_study.py [TRACES...] [--cluster NAME] [--json]``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from simcore.apps.process import alone
from simcore.apps.studies.contention.command import contention_study

if __name__ == "__main__":
    alone(contention_study)
