"""Trace the recipes at full size and check what must hold: ``python scripts/check_tracing.py [CASE ...]``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from workloads.tracing.drive.check import main

if __name__ == "__main__":
    main()
