"""Look at a finished run: ``report.py RUN_DIR [--perfetto FILE [--host]] [--plot FILE] [--ranks 0,8]``."""

from __future__ import annotations

import sys

sys.path.insert(0, __file__.rsplit("scripts", 1)[0])

from simcore.apps.process import alone

if __name__ == "__main__":
    alone("simcore.apps.run.finished:report")
