"""Simulate one training step: ``run_sim.py [WORKLOAD] [--cluster NAME] [--set KEY=VALUE ...] [--json]``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from simcore.apps.process import alone
from simcore.apps.run.run_sim import run_sim

if __name__ == "__main__":
    alone(run_sim)
