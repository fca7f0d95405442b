"""A workload as Chakra execution traces: ``export_chakra.py WORKLOAD --out DIR``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from simcore.apps.run.export_chakra import main

if __name__ == "__main__":
    main()
