"""What a slower network costs traced data-parallel jobs: ``bandwidth_study.py [MODEL...] [--json]``."""

from __future__ import annotations

import sys

sys.path.insert(0, __file__.rsplit("scripts", 1)[0])

from simcore.apps.process import alone

if __name__ == "__main__":
    alone("simcore.apps.studies.bandwidth:bandwidth_study")
