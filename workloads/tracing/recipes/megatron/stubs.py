"""What a process needs before it imports Megatron-core."""

from __future__ import annotations

import os

from workloads.tracing.stand_ins import finder


def install() -> None:
    """Ready this process for Megatron: stand-ins first, which it looks for when it is imported."""
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")  # as Megatron asks for with tensor parallelism
    finder.install({"apex", "amp_C"})
    from workloads.tracing.recipes.megatron import gpt, hooks  # noqa: F401  (once for all ranks)

    hooks.install()
