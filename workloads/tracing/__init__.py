"""Tracing a real training program without a GPU.  Importing this package does not import torch."""

from workloads.tracing.fake_device import FakeDeviceError
from workloads.tracing.job import MegatronGptJob
from workloads.tracing.trace import TraceReport, TracingError, trace_megatron_gpt

__all__ = ["FakeDeviceError", "MegatronGptJob", "TraceReport", "TracingError", "trace_megatron_gpt"]
