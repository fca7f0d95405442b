"""Recorded traces replayed: ``replay.py TRACE... [--step K] [--json]``."""

from __future__ import annotations

import sys

sys.path.insert(0, __file__.rsplit("scripts", 1)[0])

from simcore.apps.process import alone

if __name__ == "__main__":
    alone("simcore.apps.replay.command:replay")
