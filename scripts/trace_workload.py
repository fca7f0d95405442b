"""Trace a training program without a GPU: ``python scripts/trace_workload.py megatron-gpt --help``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from workloads.tracing.drive.cli import main

if __name__ == "__main__":
    main()
