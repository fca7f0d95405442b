"""How a model is spread over GPUs, and the execution graph that follows."""

from workloads.parallel.spec import ParallelSpec, TrainingSpec

__all__ = ["ParallelSpec", "TrainingSpec"]
