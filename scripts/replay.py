"""Recorded traces replayed: ``replay.py TRACE... [--step K] [--json]``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from simcore.apps.process import alone
from simcore.apps.replay.command import replay

if __name__ == "__main__":
    alone(replay)
