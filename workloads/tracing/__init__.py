"""Tracing a real training program without a GPU.  Importing this package does not import torch.

What a script or a ``--setup`` file may import lies beside this file; the tracer in ``fake``, ``record`` and
``drive``, the programs that it knows by name in ``recipes``.
"""

from workloads.tracing.drive.rank_classes import TraceReport
from workloads.tracing.drive.rounds import TracingError
from workloads.tracing.drive.script_job import ScriptJob
from workloads.tracing.drive.trace import trace
from workloads.tracing.fake.device import FakeDeviceError
from workloads.tracing.marks import simcore_step
from workloads.tracing.recipes.megatron.job import MegatronGptJob

__all__ = [
    "FakeDeviceError",
    "MegatronGptJob",
    "ScriptJob",
    "TraceReport",
    "TracingError",
    "simcore_step",
    "trace",
]
