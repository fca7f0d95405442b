"""What a slower network costs traced data-parallel jobs: ``bandwidth_study.py [MODEL...] [--json]``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from simcore.apps.process import alone
from simcore.apps.studies.bandwidth import bandwidth_study

if __name__ == "__main__":
    alone(bandwidth_study)
