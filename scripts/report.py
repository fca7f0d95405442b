"""Look at a finished run: ``report.py RUN_DIR [--perfetto FILE [--host]] [--plot FILE] [--ranks 0,8]``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from simcore.apps.process import alone
from simcore.apps.run.finished import report

if __name__ == "__main__":
    alone(report)
