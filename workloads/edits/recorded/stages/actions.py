"""Forwards and backwards of microbatches in a recorded rank: kernels between exchanges with other stages.

What launched a kernel tells a backward (:mod:`workloads.imports.recording.host_notes`); forwards and
backwards that follow their like are parted by the sends and receives between them.  Where nothing tells
backwards, groups of kernels between exchanges are of two kinds, and a step begins with a forward.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from simcore.errors import InputError
from simcore.graph import Graph, OpKind
from simcore.graph.ops import IntArray
from simcore.records import dataclass
from workloads.edits.job import EditableJob
from workloads.edits.recorded.repeats import levels
from workloads.imports.recorded import ImportedRank

_SMALL = (
    0.2  # of the largest forward or backward: less is no action but counting, scaling, zeroing between them
)


@dataclass(frozen=True)
class RecordedAction:
    """One recorded action: ``kind`` F or B, rows of the graph.

    ``lead`` is what comes before its first kernel (host time, waits), exchanges taken out; the first
    ``before`` of it stand before them, -1: there are none.  ``body`` begins and ends with a kernel of the
    main stream.
    """

    kind: str
    lead: IntArray
    before: int
    body: IntArray


@dataclass(frozen=True)
class RecordedRankStep:
    """A rank's step: rows ``begin`` to ``end`` are its actions and exchanges, the last of them ``tail``."""

    begin: int
    end: int
    pieces: tuple[RecordedAction, ...]
    exchanges: IntArray
    tail: IntArray

    @property
    def kinds(self) -> str:
        """Kinds of its actions in order: FFBFBB."""
        return "".join(piece.kind for piece in self.pieces)


@dataclass(frozen=True)
class _Segment:
    kind: str
    kernels: IntArray
    after_exchange: bool  # an exchange stands between the segment before and this one


def main_kernels(job: EditableJob, index: int) -> npt.NDArray[np.bool_]:
    """By op of a recorded rank: a kernel, no communication, of the stream that computes most."""
    recorded = job.ranks[index].recorded
    computes = recorded.is_kernel & ~recorded.is_comm
    if not computes.any():
        raise InputError(f"rank {job.ranks[index].number} has no kernels but communication")
    length = (recorded.end_ps - recorded.start_ps)[computes]
    busy = np.bincount(recorded.stream.codes[computes], weights=length)
    mask: npt.NDArray[np.bool_] = computes & (recorded.stream.codes == int(np.argmax(busy)))
    return mask


def rank_steps(job: EditableJob, index: int, exchanges: IntArray) -> list[RecordedRankStep]:
    """The actions of every step of a rank; ``exchanges`` are its rows that send to, or receive from, stages.

    Errors: InputError when backwards cannot be told from forwards.
    """
    rank, graph = job.ranks[index], job.graph
    first = int(graph.template_start[index])
    main = main_kernels(job, index)
    found = []
    for number, members in enumerate(rank.step_ops):
        rows = np.sort(first + rank.flat[members])
        kernels = np.sort(first + rank.flat[members[main[members]]])
        inside = exchanges[np.isin(exchanges, rows)]
        where = f"rank {rank.number}, step {rank.steps[number].number}"
        segments = _actions(graph, kernels, inside, where)
        begin = int(rows[0])
        if number:  # host time before its first op belongs to a step
            begin = int(max(first + rank.flat[rank.step_ops[number - 1]])) + 1
        found.append(_with_rows(graph, segments, kernels, inside, begin))
    return found


def _actions(graph: Graph, kernels: IntArray, exchanges: IntArray, where: str) -> list[_Segment]:
    phases = graph.ops.phase
    told = phases.equals("bwd")[kernels].any()
    between = np.searchsorted(exchanges, kernels)
    label = np.full(len(kernels), ord("F"))
    if told:
        label[phases.equals("bwd")[kernels]] = ord("B")
        label[phases.equals("optimizer")[kernels]] = ord("O")
    else:
        label = _by_structure(graph, kernels, between, where)
    bounds = np.flatnonzero((np.diff(label) != 0) | (np.diff(between) != 0)) + 1
    segments: list[_Segment] = []
    ends = 0
    for part in np.split(np.arange(len(kernels)), bounds):
        kind = chr(label[part[0]])
        since = int(between[part[0]])
        segments.append(_Segment(kind, kernels[part], since != ends))
        ends = since
    return _joined(graph, segments, where)


def _joined(graph: Graph, segments: list[_Segment], where: str) -> list[_Segment]:
    """Without what is small; parts of one action, between which nothing was exchanged, are one."""
    count = {kind: max((len(s.kernels) for s in segments if s.kind == kind), default=0) for kind in "FB"}
    actions: list[_Segment] = []
    exchanged = False
    for segment in _without_splinters(segments, count):
        exchanged |= segment.after_exchange
        if segment.kind == "O" or len(segment.kernels) < _SMALL * count[segment.kind]:
            continue
        last = actions[-1] if actions else None
        if last is not None and last.kind == segment.kind and not exchanged:
            actions[-1] = _Segment(
                last.kind, np.concatenate([last.kernels, segment.kernels]), last.after_exchange
            )
        else:
            actions.append(_Segment(segment.kind, segment.kernels, exchanged))
        exchanged = False
    last_backward = max((at for at, s in enumerate(actions) if s.kind == "B"), default=-1)
    actions = actions[: last_backward + 1]  # what follows is the optimizer's, told or not
    kinds = "".join(segment.kind for segment in actions)
    if len(kinds) > 2 and kinds[0] == "F" and kinds.count("F") == kinds.count("B") + 1:
        names = [_names(graph, s.kernels) for s in actions]
        if names[0] != names[kinds.index("F", 1)]:
            actions, kinds = actions[1:], kinds[1:]  # before the first microbatch: parameters, scaling
    if not kinds or kinds.count("F") != kinds.count("B"):
        shown = kinds if len(kinds) <= 40 else f"{kinds[:40]}..."
        raise InputError(
            f"{where}: forwards and backwards do not pair ({shown or 'none'}); record with CPU activities"
            " (ProfilerActivity.CPU, or nsys with --pytorch=autograd-nvtx), whose autograd events tell them"
        )
    return [_without_prologue(graph, actions), *actions[1:]]


def _without_splinters(segments: list[_Segment], count: dict[str, int]) -> list[_Segment]:
    """Segments without kernels of another kind that part an action, as scaling gradients does a backward.

    Between two exchanges the smallest that is no action goes first, and its neighbours become one if they are
    of one kind; what is left of such before the second exchange is done before it, and belongs to the action.
    ``count`` are the kernels of the largest of each kind.
    """

    def small(segment: _Segment) -> bool:
        return len(segment.kernels) < _SMALL * count.get(segment.kind, 0)

    found: list[_Segment] = []
    begins = [at for at, segment in enumerate(segments) if segment.after_exchange or not at]
    for begin, end in pairwise([*begins, len(segments)]):
        group = segments[begin:end]
        exchanged = group[0].after_exchange
        while len(group) > 1:
            inner = [at for at in range(1, len(group) - 1) if group[at - 1].kind == group[at + 1].kind]
            splinters = [at for at in inner if small(group[at])]
            if not splinters:
                break
            at = min(splinters, key=lambda at: len(group[at].kernels))
            before, after = group[at - 1], group[at + 1]
            joined = _Segment(
                before.kind, np.concatenate([before.kernels, after.kernels]), before.after_exchange
            )
            group[at - 1 : at + 2] = [joined]
        if len(group) > 1 and end < len(segments) and small(group[-1]) and not small(group[-2]):
            last = group.pop()
            group[-1] = replace(group[-1], kernels=np.concatenate([group[-1].kernels, last.kernels]))
        found += [replace(group[0], after_exchange=exchanged), *group[1:]]
    return found


def _without_prologue(graph: Graph, actions: list[_Segment]) -> _Segment:
    """The first forward without what the others do not begin with."""
    first = actions[0]
    others = [s for s in actions[1:] if s.kind == "F"]
    if others:
        mine, theirs = _names(graph, first.kernels), _names(graph, others[0].kernels)
        more = len(mine) - len(theirs)
        if more > 0 and mine[more:] == theirs:
            return _Segment("F", first.kernels[more:], first.after_exchange)
    return first


def _names(graph: Graph, rows: IntArray) -> list[int]:
    return [int(code) for code in graph.ops.name.codes[rows]]


def _by_structure(graph: Graph, kernels: IntArray, between: IntArray, where: str) -> IntArray:
    """Labels where no host events tell: kinds of groups of kernels between exchanges.

    A step begins with a forward.  Where nothing is exchanged between a forward and a backward, as on the last
    stage, or the other way round, as on the first, a group holds both.
    """
    groups = np.split(np.arange(len(kernels)), np.flatnonzero(np.diff(between)) + 1)
    largest = max(map(len, groups))
    groups = [group for group in groups if len(group) >= _SMALL * largest]
    label = np.full(len(kernels), ord("O"))
    codes = graph.ops.name.codes[kernels].astype(np.int64)
    forward, backward = codes[groups[0]].tolist(), frozenset[int]()
    cut = _second_run(codes[groups[0]], graph.ops.recorded_ps[kernels[groups[0]]])
    if cut:
        forward, backward = forward[:cut], frozenset(forward[cut:])
    for group in groups:
        names = codes[group].tolist()
        if len(names) > len(forward) and names[: len(forward)] == forward:
            parts = [("F", 0), ("B", len(forward))]
        elif len(names) > len(forward) and names[-len(forward) :] == forward:
            parts = [("B", 0), ("F", len(names) - len(forward))]
        elif _alike(frozenset(names), frozenset(forward)):
            parts = [("F", 0)]
        else:
            backward = backward or frozenset(names)
            if not _alike(frozenset(names), backward):
                raise InputError(
                    f"{where}: nothing tells forwards from backwards: kernels between exchanges are of three"
                    " kinds or more; record with CPU activities (ProfilerActivity.CPU), whose autograd events"
                    " tell them"
                )
            parts = [("B", 0)]
        for kind, since in parts:
            label[group[since:]] = ord(kind)
    return label


def _alike(names: frozenset[int], others: frozenset[int]) -> bool:
    return len(names & others) >= 0.5 * len(names | others)


def _second_run(codes: IntArray, time_ps: IntArray) -> int:
    """Where a backward begins right behind its forward: other layers repeat than before; 0: nowhere.

    A third of what lies between is the forward's (head and loss): a backward has twice its products.
    """
    for level in levels(codes, time_ps)[:1]:
        runs = [run for run in level.runs if run.count == level.count]
        if len(runs) == 2:
            first, second = (frozenset(codes[run.start : run.start + run.period].tolist()) for run in runs)
            since, until = runs[0].stop, runs[1].start
            passed = np.concatenate([[0], np.cumsum(time_ps[since:until])])
            return 0 if _alike(first, second) else since + int(np.argmin(np.abs(passed - passed[-1] / 3)))
    return 0


def _with_rows(
    graph: Graph, segments: list[_Segment], kernels: IntArray, exchanges: IntArray, begin: int
) -> RecordedRankStep:
    ops = graph.ops
    dropped = np.zeros(len(ops), dtype=np.bool_)
    dropped[exchanges] = True
    gaps = exchanges[exchanges > begin] - 1  # a gap on the device before an exchange
    gaps = gaps[
        (ops.kind[gaps] == OpKind.EVENT_WAIT) & (ops.stream.codes[gaps] == ops.stream.codes[gaps + 1])
    ]
    dropped[gaps] = True
    head = int(segments[0].kernels[0])
    early = exchanges[exchanges < head]
    limit = int(early[0]) if len(early) else head
    at = np.searchsorted(kernels, limit)
    start = max(begin, int(kernels[at - 1]) + 1 if at else begin)
    pieces = []
    since = start
    for segment in segments:
        first, last = int(segment.kernels[0]), int(segment.kernels[-1])
        lead = np.arange(since, first)
        mine = exchanges[(exchanges >= since) & (exchanges < first)]
        before = int((~dropped[since : int(mine[0])]).sum()) if len(mine) else -1
        pieces.append(RecordedAction(segment.kind, lead[~dropped[lead]], before, np.arange(first, last + 1)))
        since = last + 1
    after = exchanges[exchanges >= since]
    end = since
    if len(after):
        end = int(after[-1]) + 1
        waiting = graph.edges.dst[np.isin(graph.edges.src, after)]
        ends = [int(row) + 1 for row in waiting if ops.kind[row] == OpKind.SYNC]
        end = max([end, *ends])
    tail = np.arange(since, end)
    return RecordedRankStep(start, end, tuple(pieces), exchanges, tail[~dropped[tail]])


def shortest_leads(steps: list[RecordedRankStep], graph: Graph) -> dict[str, dict[int, int]]:
    """Host time and gaps of the device before an action as they are when it need not wait for a stage.

    By kind of action and of op: a quarter of the recorded leads are as short, or shorter, ps.
    """
    found: dict[str, dict[int, int]] = {}
    for kind in "FB":
        leads = [piece.lead for step in steps for piece in step.pieces if piece.kind == kind]
        found[kind] = {
            what: int(np.quantile([_spent(graph, lead, what) for lead in leads], 0.25, method="lower"))
            for what in (OpKind.HOST, OpKind.EVENT_WAIT)
        }
    return found


def _spent(graph: Graph, rows: IntArray, kind: int) -> int:
    return int(graph.ops.recorded_ps[rows[graph.ops.kind[rows] == kind]].sum())


def is_whole(rank: ImportedRank) -> bool:
    """Whether a rank's steps follow one another without sharing ops."""
    bounds = [(int(rank.flat[ops].min()), int(rank.flat[ops].max())) for ops in rank.step_ops]
    return all(one[1] < two[0] for one, two in pairwise(bounds))
