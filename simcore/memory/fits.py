"""Does the job fit?  If not: which stage, by how much, and what would help."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from simcore.errors import OutOfMemoryError
from simcore.graph.graph import Graph
from simcore.hardware.specs import GpuSpec
from simcore.memory.peak import ProgramMemory, peak_memory
from simcore.units import GIB


def check_fits(
    graph: Graph,
    gpu: GpuSpec,
    memory: Sequence[ProgramMemory] | None = None,
    advice: Callable[[int], Sequence[str]] | None = None,
) -> tuple[ProgramMemory, ...]:
    """Peak memory of every program, when all fit ``gpu``.

    ``memory`` saves computing it again.  Available is ``hbm_bytes - reserved_bytes``.  ``advice`` says what
    fits into so many bytes, where that can be tried; else it is estimated.
    OutOfMemoryError for the fullest program that does not fit: its stage, the parts, and what would help.
    """
    found = tuple(memory) if memory is not None else peak_memory(graph)
    available = gpu.hbm_bytes - gpu.reserved_bytes
    worst = max(found, key=lambda one: one.total, default=None)
    if worst is None or worst.total <= available:
        return found
    count = sum(one.total > available for one in found)
    helps = advice(available) if advice is not None else _advice(graph, worst, available)
    raise OutOfMemoryError(_message(gpu, worst, available, count, len(found), helps))


def _message(
    gpu: GpuSpec, worst: ProgramMemory, available: int, count: int, programs: int, advice: Sequence[str]
) -> str:
    where = f"peak in {worst.peak_template!r}" if worst.peak_template else "as given"
    if worst.peak_microbatch >= 0:
        where += f" of microbatch {worst.peak_microbatch}"
    lines = [
        f"out of memory: stage {worst.stage} (rank {_ranks(worst.ranks)}) needs {_gib(worst.total)}, "
        f"{gpu.name} has {_gib(available)} ({_gib(gpu.hbm_bytes)} less {_gib(gpu.reserved_bytes)} reserved)",
        f"  parameters {_gib(worst.parameters)}, gradients {_gib(worst.gradients)}, "
        f"optimizer states {_gib(worst.optimizer_states)}, activations {_gib(worst.activations)} ({where})",
    ]
    if count > 1:
        lines.append(f"  {count} of {programs} rank classes do not fit; this is the fullest")
    lines += [f"  {line}" for line in advice]
    return "\n".join(lines)


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
