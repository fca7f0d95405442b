"""Fluid network against packets: ``fidelity_study.py [--json] [--quick] [--plot SVG]``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from simcore.apps.process import alone
from simcore.apps.studies.command import fidelity_study

if __name__ == "__main__":
    alone(fidelity_study)
