"""What a Triton kernel reads, writes and computes, counted by running its code on shapes (``count``)."""

from workloads.tracing.stand_ins.triton_code.count import CannotCountError, TritonLaunch, counted

__all__ = ["CannotCountError", "TritonLaunch", "counted"]
