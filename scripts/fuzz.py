"""Mutated inputs of every format, shown to the simulator: ``fuzz.py --cases N --seed S [--out FILE]``."""

from __future__ import annotations

import sys

sys.path.insert(0, __file__.rsplit("scripts", 1)[0])

from simcore.apps.process import alone

if __name__ == "__main__":
    alone("tests.fuzz.command:fuzz")
