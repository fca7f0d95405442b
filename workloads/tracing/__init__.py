"""Tracing a real training program without a GPU.  Importing this package does not import torch."""

from workloads.tracing.fake_device import FakeDeviceError
from workloads.tracing.job import MegatronGptJob
from workloads.tracing.pool import TracingError
from workloads.tracing.script.job import ScriptJob
from workloads.tracing.script.marks import simcore_step
from workloads.tracing.script.trace_script import trace_script
from workloads.tracing.trace import TraceReport, trace_megatron_gpt

__all__ = [
    "FakeDeviceError",
    "MegatronGptJob",
    "ScriptJob",
    "TraceReport",
    "TracingError",
    "simcore_step",
    "trace_megatron_gpt",
    "trace_script",
]
