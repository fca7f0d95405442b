"""Trace the recipes at full size and check what must hold: ``python scripts/check_tracing.py [CASE ...]``."""

import sys

sys.path.insert(0, __file__.rsplit("scripts", 1)[0])

from simcore.apps.process import alone

if __name__ == "__main__":
    alone("workloads.tracing.drive.check:run")
