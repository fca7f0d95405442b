"""Of a job that does not fit: the parts of its fullest stage, and what would help."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from simcore.graph.graph import Graph
from simcore.hardware.specs import GpuSpec
from simcore.memory.outside import OutsideMemory
from simcore.memory.peak import ProgramMemory
from simcore.units import GIB


def parts_and_advice(
    graph: Graph, gpu: GpuSpec, memory: Sequence[ProgramMemory], outside: OutsideMemory,
    advice: Callable[[int], Sequence[str]] | None = None,
) -> list[str]:  # fmt: skip
    """Lines on the fullest program, which does not fit ``gpu``: its parts, and what would help.

    ``outside``: what of the GPU is not the allocator's.  ``advice`` says what fits into so many bytes, where
    that can be tried; else it is estimated.
    """
    available = outside.available_bytes(gpu)
    worst = max(memory, key=lambda one: one.total)
    where = f"peak in {worst.peak_template!r}" if worst.peak_template else "as given"
    if worst.peak_microbatch >= 0:
        where += f" of microbatch {worst.peak_microbatch}"
    lines = [
        f"stage {worst.stage} (rank {_ranks(worst.ranks)}) needs about {_gib(worst.total)}, "
        f"{gpu.name} has {_gib(available)} ({_gib(gpu.hbm_bytes)} less {outside})",
        f"parameters {_gib(worst.parameters)}, gradients {_gib(worst.gradients)}, "
        f"optimizer states {_gib(worst.optimizer_states)}, activations {_gib(worst.activations)} ({where})",
    ]
    count = sum(one.total > available for one in memory)
    if count > 1:
        lines.append(f"{count} of {len(memory)} rank classes do not fit; this is the fullest")
    helps = advice(available) if advice is not None else _advice(graph, worst, available)
    return [*lines, *helps]


def _advice(graph: Graph, worst: ProgramMemory, available: int) -> list[str]:
    """What would make it fit, most specific first."""
    workload = graph.workload
    advice = []
    recompute = str(workload.options.get("recompute", "")).lower()
    if worst.static <= available and recompute != "full":
        advice.append(f"activations may take {_gib(available - worst.static)}: trace with full recomputation")
    if worst.static <= available and workload.micro_batch_size > 1:
        advice.append(f"or a micro batch size below {workload.micro_batch_size}")
    dp = int(workload.dims.get("dp", 1))
    sharded = worst.static - worst.optimizer_states + worst.optimizer_states // max(1, dp)
    if dp > 1 and sharded + worst.activations <= available and not _distributed_optimizer(graph):
        advice.append(f"a distributed optimizer would shard its states over dp={dp}")
    factor = math.ceil(worst.total / available)
    tp, pp = workload.dims.get("tp", 1), workload.dims.get("pp", 1)
    advice.append(f"model parallelism {factor} times higher would do (now tp={tp}, pp={pp})")
    return advice


def _distributed_optimizer(graph: Graph) -> bool:
    options = graph.workload.options
    return bool(options.get("distributed_optimizer", options.get("use_distributed_optimizer", False)))


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.2f} GiB"


def _ranks(ranks: Sequence[int]) -> str:
    text = ", ".join(str(rank) for rank in ranks[:4])
    return text if len(ranks) <= 4 else f"{text}, ... {len(ranks)} in all"
