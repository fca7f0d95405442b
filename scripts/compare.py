"""Two runs side by side: ``compare.py RUN_A RUN_B [--json]``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from simcore.apps.process import alone
from simcore.apps.run.finished import compare

if __name__ == "__main__":
    alone(compare)
