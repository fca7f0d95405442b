"""Trace a training program without a GPU: ``python scripts/trace_workload.py megatron-gpt --help``."""

import sys

sys.path.insert(0, __file__.rsplit("scripts", 1)[0])

from simcore.apps.process import alone

if __name__ == "__main__":
    alone("workloads.tracing.drive.cli:app")
