"""A workload as Chakra execution traces: ``export_chakra.py WORKLOAD --out DIR``."""

from __future__ import annotations

import sys

sys.path.insert(0, __file__.rsplit("scripts", 1)[0])

from simcore.apps.process import alone

if __name__ == "__main__":
    alone("simcore.apps.run.finished:export_chakra")
