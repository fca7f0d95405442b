"""Facts of a run that follow from its graph and plans: flops, memory, origins and errors of estimates."""

from __future__ import annotations

import importlib.metadata
import math
import platform
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import simpy

from simcore.elementary import plain_sum
from simcore.engine.result import SimulationResult
from simcore.graph.graph import Graph
from simcore.graph.ops import IntArray, OpKind, Strings
from simcore.memory import ProgramMemory
from simcore.timeline.info import FlopCounts, StageMemory

_MODEL_PHASES = ("fwd", "bwd")
_HERE = Path(__file__).parent
_PATIENCE_S = 5


def row_counts(graph: Graph) -> IntArray:
    """How often each op-table row runs in one step, all ranks together."""
    counts = np.zeros(len(graph.ops), dtype=np.int64)
    for program in graph.programs:
        played = np.bincount(program.template, minlength=graph.num_templates) * program.num_ranks
        counts += np.repeat(played, np.diff(graph.template_start))
    return counts


def flop_counts(graph: Graph) -> FlopCounts:
    """Flops of one step by convention; see :class:`FlopCounts`.

    Attention is every attention kernel, and every batched GEMM of a module named after attention (the
    query-key and the score-value product).  A graph that knows what its model's mathematics needs says so
    (``model_flops_per_step``, ``model_flops_full_per_step``): what kernels do besides, for padding say, is
    executed, but not the model's.
    """
    ops = graph.ops
    of_attention = _holds(ops.module, lambda name: "attention" in name or "attn" in name)
    is_scores = _holds(ops.op_class, lambda name: name in ("attention_fwd", "attention_bwd"))
    is_scores |= of_attention & ops.op_class.equals("bgemm")
    is_model = _holds(ops.phase, lambda name: name in _MODEL_PHASES)
    # Python integers: the total of a large job passes 2**63.
    total = ops.flops.astype(object) * row_counts(graph).astype(object)
    total[ops.kind != OpKind.COMPUTE] = 0
    model, attention = _sum(total[is_model]), _sum(total[is_model & is_scores])
    model_causal, known = model - attention // 2, graph.workload.model
    if "model_flops_per_step" in known:
        model_causal = int(known["model_flops_per_step"])
        model = int(known["model_flops_full_per_step"])
    return FlopCounts(model=model, model_causal=model_causal, executed=_sum(total), attention=attention)


def origin_shares(
    graph: Graph, alone_ps: IntArray, origin: IntArray, origins: Sequence[str]
) -> dict[str, float]:
    """Share of all kernel time (alone) by origin of its estimate; only origins that occur."""
    weight = (alone_ps * row_counts(graph).astype(np.float64)) * (graph.ops.kind == OpKind.COMPUTE)
    total = float(weight.sum())
    if total == 0.0:
        return {}
    by_origin = np.bincount(origin, weights=weight, minlength=len(origins)) / total
    return {name: float(share) for name, share in zip(origins, by_origin, strict=True) if share > 0.0}


def communication_error(result: SimulationResult) -> float:
    """One standard deviation of all communication time together (alone), relative; 0 without any.

    Within a family (collective and size band, which share their error) plans are off by the same share:
    many of them do not average out.  Families were measured apart and count as independent.
    """
    alone = np.array([plan.alone_ps for plan in result.plans], dtype=np.float64)
    ranks = np.bincount(result.class_of, minlength=len(result.plan_of))
    counts = np.zeros(len(alone), dtype=np.float64)
    for plan_of, num_ranks in zip(result.plan_of, ranks, strict=True):
        counts += num_ranks * np.bincount(plan_of[plan_of >= 0], minlength=len(alone))
    families: dict[tuple[str, float], float] = {}
    for plan, time in zip(result.plans, (counts * alone).tolist(), strict=True):
        family = (plan.collective, plan.relative_error)
        families[family] = families.get(family, 0.0) + time
    total = plain_sum(families.values())
    errors = [error * time for (_, error), time in families.items()]
    return math.sqrt(plain_sum(error * error for error in errors)) / total if total else 0.0


def stage_memory(memory: Sequence[ProgramMemory], capacity_bytes: int) -> tuple[StageMemory, ...]:
    """Peak memory of each program's ranks, by stage."""
    rows = [
        StageMemory(
            program=program.program,
            stage=program.stage,
            num_ranks=len(program.ranks),
            parameters=program.parameters,
            gradients=program.gradients,
            optimizer_states=program.optimizer_states,
            activations=program.activations,
            peak=program.total,
            capacity=capacity_bytes,
        )
        for program in memory
    ]
    return tuple(sorted(rows, key=lambda row: (row.stage, row.program)))


def software_versions() -> dict[str, str]:
    """Versions of what computed the run."""
    try:
        own = importlib.metadata.version("stepsim")
    except importlib.metadata.PackageNotFoundError:
        own = "not installed"
    libraries = {library.__name__: library.__version__ for library in (np, pa, simpy)}
    return {"python": platform.python_version(), "stepsim": own, **libraries}


def source_commit(folder: Path = _HERE) -> str | None:
    """Git commit of a source tree (default: the one that runs), with "+changes" when it is dirty.

    None outside a checkout and where nothing was committed.
    """
    with asked_commit(folder) as answer:
        return answer()


@contextmanager
def asked_commit(folder: Path = _HERE) -> Iterator[Callable[[], str | None]]:
    """Have git look while the block goes on: gives what waits for its answer, :func:`source_commit`'s."""
    # No optional locks: git would write what it has looked up into the index, and leave its lock when killed.
    command = ["git", "--no-optional-locks", "-C", str(folder)]
    command += ["status", "--porcelain=v2", "--branch", "--untracked-files=no"]
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except OSError:
        yield lambda: None
        return
    with process:
        try:
            yield partial(_commit_told, process)
        finally:
            process.kill()  # if nobody waited for it


def _commit_told(process: subprocess.Popen[str]) -> str | None:
    try:
        told, _ = process.communicate(timeout=_PATIENCE_S)
    except subprocess.TimeoutExpired:
        return None
    lines = told.splitlines()
    commit = next((line.split()[-1] for line in lines if line.startswith("# branch.oid ")), "(initial)")
    if process.returncode or commit == "(initial)":
        return None
    return commit if all(line.startswith("# ") for line in lines) else commit + "+changes"


def _sum(values: npt.NDArray[np.object_]) -> int:
    return int(sum(values.tolist()))


def _holds(column: Strings, test: Callable[[str], bool]) -> npt.NDArray[np.bool_]:
    """Rows whose string passes ``test``."""
    passed = np.array([test(value) for value in column.values], dtype=np.bool_)
    return passed[column.codes]
