"""Layers and microbatches of a recording: told by repetition, played more often or less."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from simcore.collectives.kinds import SEND_RECV
from simcore.errors import InputError
from simcore.graph import OpKind
from simcore.graph.kinds import is_on_host
from simcore.graph.ops import IntArray
from simcore.graph.size import refuse_too_large
from simcore.records import dataclass
from workloads.edits.job import EditableJob, Edited
from workloads.edits.kernels.classes import OVER_PARAMETERS, op_classes
from workloads.edits.kernels.edits import edited_kernels, lasting
from workloads.edits.recorded.repeats import WHOLE, Level, RepeatedGroups, levels
from workloads.edits.recorded.rows import replayed
from workloads.edits.recorded.stages.edits import pipeline_layers, pipeline_microbatches
from workloads.edits.recorded.stages.pipelines import OVERLAPPED, Recorded, recorded_pipelines
from workloads.edits.registry import COUNT, EditCall, edit
from workloads.imports.recorded import ImportedRank


@dataclass(frozen=True)
class _RepeatedStep:
    """The main stream's kernels of a rank's step in order of issue: rows of the graph, and their levels."""

    rows: IntArray
    levels: list[Level]


def _steps(job: EditableJob, index: int, rank: ImportedRank) -> list[_RepeatedStep]:
    first = int(job.graph.template_start[index])
    recorded = rank.recorded
    length = recorded.end_ps - recorded.start_ps
    computes = recorded.is_kernel & ~recorded.is_comm
    if not computes.any():
        raise InputError(f"rank {rank.number} has no kernels but communication")
    busy = np.bincount(recorded.stream.codes[computes], weights=length[computes])
    main = computes & (recorded.stream.codes == int(np.argmax(busy)))
    found = []
    for members in rank.step_ops:
        mine = members[main[members]]
        mine = mine[np.argsort(rank.flat[mine])]
        codes = recorded.name.codes[mine].astype(np.int64)
        found.append(_RepeatedStep(first + rank.flat[mine], levels(codes, length[mine])))
    return found


def _level(step: _RepeatedStep, old: int | None, inner: bool) -> Level:
    """The level that is meant: that of ``old`` groups, else the innermost or the outermost."""
    clear = [level for level in step.levels if level.share >= WHOLE]
    if not clear:
        best = max((level.share for level in step.levels), default=0.0)
        raise InputError(
            "the recording does not show where layers begin: no number of repeated groups of kernels makes up"
            f" half of a step's time (the best {best:.0%}). Trace the program instead"
        )
    if old is not None:
        # A pipeline's stage has a share of the layers; its first microbatches run before a steady state.
        fits = [
            level
            for level in clear
            if (old % level.count == 0 if inner else old // 2 < level.count <= old and _is_once(level))
        ]
        if not fits:
            told = ", ".join(f"{level.count} ({level.share:.0%} of the time)" for level in clear)
            raise InputError(f"no group of kernels repeats {old} times; groups repeat {told} times")
        return fits[-1 if inner else 0]
    return clear[-1 if inner else 0]


def _is_once(level: Level) -> bool:
    """Whether a step has its groups once, as it has microbatches; layers come again in each pass of each."""
    return sum(abs(run.count - level.count) <= 1 for run in level.runs) == 1


@edit("layers", value=COUNT, help="layers of the model, told by repetition", kinds=("recorded",))
def layers(job: EditableJob, call: EditCall) -> Edited:
    """Groups of kernels that follow one another, more often or less; all else stays."""
    return _repeated(job, call, inner=True)


@edit("num_microbatches", value=COUNT, help="microbatches of a step, told by repetition", kinds=("recorded",))
def num_microbatches(job: EditableJob, call: EditCall) -> Edited:
    """The groups that hold a microbatch's kernels, more often or less."""
    return _repeated(job, call, inner=False)


def _repeated(job: EditableJob, call: EditCall, *, inner: bool) -> Edited:
    job = edited_kernels(job)
    recorded = _pipelines(job)
    if recorded is not None:
        return (pipeline_layers if inner else pipeline_microbatches)(job, recorded, call)
    old, new = call.value
    if old is None and any(_exchanges(rank) for rank in job.ranks):
        raise InputError(
            f"ranks send to each other, as stages of a pipeline do: say how many there were in all,"
            f" {call.key}=OLD:{new}"
        )
    graph = job.graph
    copies = np.ones(len(graph.ops), dtype=np.int64)
    outside = np.ones(len(graph.ops), dtype=np.bool_)
    blocks: list[tuple[int, int, int]] = []
    told: dict[tuple[int, float], int] = {}
    ratio = 1.0
    for index, rank in enumerate(job.ranks):
        bounds = range(int(graph.template_start[index]), int(graph.template_start[index + 1]))
        for step in _steps(job, index, rank):
            level = _level(step, old, inner)
            if not inner and old is None and (level is step.levels[-1] or not _is_once(level)):
                raise InputError(
                    "one level of repetition is seen, the layers: the recording has one microbatch, or its"
                    " microbatches differ"
                )
            was = level.count if old is None else old
            more = new - was
            if inner:
                if (level.count * new) % was:
                    raise InputError(
                        f"{level.count} of {was} are on rank {rank.number}: {new} do not fall evenly"
                    )
                more = level.count * new // was - level.count
            ratio = new / was
            told[level.count, round(level.share, 2)] = len(level.runs)
            for run in level.runs:
                if abs(run.count - level.count) <= 1:
                    _copy(run, more, step.rows, bounds, copies, blocks)
                    outside[step.rows[run.start : run.stop]] = False
    more_ops = sum((end - begin) * times for begin, end, times in blocks)
    refuse_too_large("the edited recording", ranks=len(job.ranks), ops=len(graph.ops) + more_ops)
    rows = [
        _played(int(graph.template_start[i]), int(graph.template_start[i + 1]), copies, blocks)
        for i in range(len(job.ranks))
    ]
    played = np.concatenate(rows)
    edited = replayed(job, rows)
    assumed = [
        f"{count} repeated groups of kernels, {share:.0%} of a step's kernel time, are what {call.key} counts"
        for count, share in told
    ]
    assumed.append(
        "each group more is a copy of one in the middle, with its host time, waits and communication"
    )
    on_gpu = ~(is_on_host(graph.ops.kind) | (graph.ops.kind == OpKind.EVENT_WAIT))
    times = np.bincount(played, minlength=len(graph.ops))
    changed = int(np.abs(times - 1)[on_gpu].sum())
    if inner:
        edited, scaled = _scaled_parameters(edited, outside[played], ratio)
        if scaled:
            assumed.append(
                f"optimizer kernels last {ratio:.3g} times as long, as if all parameters were in layers"
            )
    return Edited(edited, tuple(assumed), changed)


def _pipelines(job: EditableJob) -> Recorded | None:
    """Recorded pipelines; None where there are none, or too little of them was recorded."""
    if OVERLAPPED in job.graph.workload.options:
        return recorded_pipelines(job)
    try:
        return recorded_pipelines(job)
    except InputError:
        return None  # not every stage, or nothing tells their actions: what repeats does


def _exchanges(rank: ImportedRank) -> bool:
    """Whether a rank sends to or receives from single others."""
    known = rank.recorded.collectives
    return known is not None and bool(known.collective.equals(SEND_RECV.name).any())


def _copy(
    run: RepeatedGroups,
    more: int,
    kernels: IntArray,
    bounds: range,
    copies: IntArray,
    blocks: list[tuple[int, int, int]],
) -> None:
    """Note which rows of a run are played how often: the groups between its first and its last, in turn."""

    def begin(group: int) -> int:
        """The row at which a group begins: behind the kernel before it, with what is launched in between."""
        at = run.start + group * run.period
        return int(kernels[at - 1]) + 1 if at else bounds.start

    if more < 0:
        if run.count + more < 1:
            raise InputError(f"a run of {run.count} groups cannot lose {-more}")
        since = begin(1) if run.count > 1 else begin(0)
        copies[since : begin(1 - more)] = 0
        return
    middle = max(1, run.count - 2)
    first = 1 if run.count > 2 else 0
    whole, rest = divmod(more, middle)
    if whole:
        blocks.append((begin(first), begin(first + middle), whole))
    if rest:
        blocks.append((begin(first), begin(first + rest), 1))


def _played(first: int, last: int, copies: IntArray, blocks: list[tuple[int, int, int]]) -> IntArray:
    """Rows of a rank in order; a block is played again right behind its end."""
    parts, at = [], first
    for begin, end, times in sorted(blocks, key=lambda block: (block[1], -block[0])):
        if first <= begin and end <= last:
            parts += [np.arange(at, end), *[np.arange(begin, end)] * times]
            at = end
    parts.append(np.arange(at, last))
    rows = np.concatenate(parts)
    return rows[copies[rows] > 0]


def _scaled_parameters(
    job: EditableJob, outside: npt.NDArray[np.bool_], ratio: float
) -> tuple[EditableJob, bool]:
    """Kernels of the optimizer, ``outside`` of layers, for ``ratio`` times the parameters."""
    ops = job.graph.ops
    rows = (
        outside
        & np.isin(op_classes(job.graph), OVER_PARAMETERS)
        & (ops.kind == OpKind.COMPUTE)
        & (ops.recorded_ps > 0)
    )
    return lasting(job, rows, (ops.recorded_ps * ratio).astype(np.float64)), bool(rows.any())
