"""Recorded kernels that ran beside communication, each with the time of the same kernel alone.

Note [The same kernel]
Two recorded kernels are the same when name, grid and (where recorded) input shapes agree.  Of those, the ones
at the same place of another step are taken for the time alone; where that place was never undisturbed, those
with the same kernels before and after them (layers repeat), or else of the same recorded shapes, provided
that they agree among themselves.  Where the kernel two places away is the same with another grid the layer
has another size: so the first convolution of a ResNet's stage, twice as deep as the others.
A kernel is compared when nothing but communication ran beside it: what two compute kernels do to each other
is another question.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from simcore.apps.replay.alone import overlapped
from simcore.apps.replay.categories import CATEGORIES, categories
from simcore.hardware.sm import ThreadBlock
from simcore.records import dataclass
from workloads.imports import ImportedJob
from workloads.imports.collective_names import serves_peers
from workloads.imports.recorded import ImportedRank, RecordedOps

#: Kernels that are one by name and shape may differ by this much when they run alone, p10 to p90.
MAX_SPREAD = 0.15
#: A kernel counts as overlapped when communication ran beside it for this share of its time.
MIN_COVERED = 0.5

_Key = tuple[int, int, str]
_Launch = tuple[int, int]  # a kernel's name and grid
_Context = tuple[_Key, _Launch, _Launch]
_Further = tuple[_Launch, _Launch]  # two places before and after


@dataclass(frozen=True)
class Neighbour:
    """A communication kernel beside a compute kernel; times in ps after the start of that kernel.

    ``blocks`` are its thread blocks (0: not recorded), ``collective`` in the words of the graph.
    ``group_size`` is the whole job's where a trace of several ranks names no group.  ``outlives``: it ended
    after the kernel, and would have if the kernel had lasted longer.  ``by_peers``: its blocks end with the
    data of the peers that they serve.  ``shortest_ps``: its shortest recording on any rank, which bounds its
    size where none is recorded.
    """

    begin_ps: int
    end_ps: int
    blocks: int
    collective: str
    num_bytes: int
    group_size: int
    outlives: bool = False
    by_peers: bool = False
    shortest_ps: int = 0


@dataclass(frozen=True)
class OverlappedKernel:
    """One recorded kernel beside communication.

    ``alone_ps`` is the median of ``num_alone`` recordings of it alone, ``spread`` their p10-p90 range
    relative to it.  ``covered`` is the share of its time that communication ran beside it.
    ``moved`` are the bytes that it reads and writes, 0 where not recorded;
    ``block`` is what a thread block takes of its SM, None where that is not recorded.
    """

    rank: int
    step: int
    name: str
    category: str
    blocks: int
    blocks_per_sm: int
    recorded_ps: int
    alone_ps: int
    spread: float
    num_alone: int
    covered: float
    neighbours: tuple[Neighbour, ...]
    block: ThreadBlock | None = None
    moved: tuple[int, int] = (0, 0)

    @property
    def slowdown(self) -> float:
        """Recorded time over time alone."""
        return self.recorded_ps / self.alone_ps


@dataclass(frozen=True)
class Pairs:
    """Overlapped kernels of a trace set, and the alone ones: what repeats of one kernel differ by.

    ``noise`` holds (relative difference, time alone in ps) of each undisturbed kernel from the median of the
    others like it.  ``unmatched`` were overlapped but never seen alone; ``others`` also had compute beside
    them.  ``compute_ps`` is all compute kernels' recorded time.
    """

    kernels: tuple[OverlappedKernel, ...]
    noise: tuple[tuple[float, int], ...]
    unmatched: int
    others: int
    compute_ps: int


def overlapped_kernels(job: ImportedJob) -> Pairs:
    """All kernels of ``job`` that ran beside communication and were seen alone too."""
    found: list[OverlappedKernel] = []
    noise: list[tuple[float, int]] = []
    unmatched = others = compute = 0
    shortest = _shortest_ps(job)
    for rank in job.ranks:
        part = _of_rank(rank, max(0, job.report.world_size), shortest)
        found += part.kernels
        noise += part.noise
        unmatched += part.unmatched
        others += part.others
        compute += part.compute_ps
    return Pairs(tuple(found), tuple(noise), unmatched, others, compute)


def _shortest_ps(job: ImportedJob) -> dict[str, int]:
    """By name, the shortest recording of what communicates: of the rank that comes last."""
    found: dict[str, int] = {}
    for rank in job.ranks:
        ops = rank.recorded
        for op in np.flatnonzero(ops.is_comm).tolist():
            name, length = ops.name[op], int(ops.end_ps[op] - ops.start_ps[op])
            found[name] = min(length, found.get(name, length))
    return found


def _of_rank(rank: ImportedRank, world_size: int, shortest_ps: Mapping[str, int]) -> Pairs:
    ops = rank.recorded
    length = ops.end_ps - ops.start_ps
    kinds = categories(ops)
    beside_comm, beside_other = overlapped(ops, ops.is_comm), overlapped(ops, ~ops.is_comm)
    computes = ops.is_kernel & ~ops.is_comm & (length > 0)
    by_place: dict[tuple[_Key, int], list[int]] = defaultdict(list)
    by_context: dict[_Context, list[tuple[int, _Further]]] = defaultdict(list)
    by_key: dict[_Key, list[int]] = defaultdict(list)
    placed: list[tuple[int, int, _Context, _Further, int]] = []  # op, step, key with context, place
    for step, members in zip(rank.steps, rank.step_ops, strict=True):
        seen: dict[_Key, int] = defaultdict(int)
        kernels_of_step = members[computes[members]].tolist()
        edge = [(-1, -1)] * 2
        launches = [(int(ops.name.codes[op]), int(ops.blocks[op])) for op in kernels_of_step]
        around = [*edge, *launches, *edge]
        for number, op in enumerate(kernels_of_step):
            key = *launches[number], _shape(ops, op)
            context = key, around[number + 1], around[number + 3]
            further = around[number], around[number + 4]
            place = seen[key]
            seen[key] += 1
            if not beside_comm[op] and not beside_other[op]:
                by_place[key, place].append(int(length[op]))
                by_context[context].append((int(length[op]), further))
                by_key[key].append(int(length[op]))
            elif beside_comm[op]:
                placed.append((op, step.number, context, further, place))
    kernels, unmatched, others = [], 0, 0
    longest = int(length.max(initial=0))
    for op, step_number, context, further, place in placed:
        if beside_other[op]:
            others += 1
            continue
        neighbours = _neighbours(ops, op, longest, world_size, shortest_ps)
        covered = _covered(neighbours, int(length[op]))
        if covered < MIN_COVERED:
            continue
        alone = by_place.get((context[0], place))
        if not alone:
            alone = [time for time, other in by_context.get(context, ()) if _one_size(other, further)]
            if not alone and context[0][2]:
                alone = by_key.get(context[0], [])
            if not alone or _spread(alone) > MAX_SPREAD:
                unmatched += 1
                continue
        kernels.append(
            OverlappedKernel(
                rank.number, step_number, ops.name[op], CATEGORIES[int(kinds[op])], int(ops.blocks[op]),
                int(ops.blocks_per_sm[op]), int(length[op]), max(1, int(np.median(alone))), _spread(alone),
                len(alone), covered, neighbours,
                ops.launches.of(op) if ops.launches is not None else None, ops.moved(op),
            )
        )  # fmt: skip
    noise = [pair for times in by_place.values() for pair in _differences(times)]
    return Pairs(tuple(kernels), tuple(noise), unmatched, others, int(length[computes].sum()))


def _one_size(one: _Further, other: _Further) -> bool:
    return all(a[0] != b[0] or a[1] == b[1] for a, b in zip(one, other, strict=True))


def _shape(ops: RecordedOps, op: int) -> str:
    if ops.shapes is None or ops.shapes.of_op[op] < 0:
        return ""
    return ops.shapes.in_shapes[int(ops.shapes.of_op[op])]


def _spread(times: list[int]) -> float:
    low, middle, high = np.quantile(times, (0.1, 0.5, 0.9))
    return float((high - low) / middle)


def _differences(times: list[int]) -> Iterable[tuple[float, int]]:
    """Each time beside the median of the others."""
    if len(times) < 2:
        return
    for i, time in enumerate(times):
        rest = float(np.median(times[:i] + times[i + 1 :]))
        yield time / rest - 1, int(rest)


def _beside(ops: RecordedOps, op: int, longest_ps: int) -> list[int]:
    """Ops that share time with ``op``; none lasts longer than ``longest_ps``."""
    first = int(np.searchsorted(ops.start_ps, ops.start_ps[op] - longest_ps))
    last = int(np.searchsorted(ops.start_ps, ops.end_ps[op]))
    inside: npt.NDArray[np.int64] = np.arange(first, last)
    shared = np.minimum(ops.end_ps[inside], ops.end_ps[op]) - np.maximum(
        ops.start_ps[inside], ops.start_ps[op]
    )
    return [other for other in inside[shared > 0].tolist() if other != op]


def _neighbours(
    ops: RecordedOps, op: int, longest_ps: int, world_size: int, shortest_ps: Mapping[str, int]
) -> tuple[Neighbour, ...]:
    known = ops.collectives
    start = int(ops.start_ps[op])
    return tuple(
        Neighbour(
            int(ops.start_ps[other]) - start,
            int(ops.end_ps[other]) - start,
            int(ops.blocks[other]),
            known.collective[other] if known is not None else "",
            int(known.num_bytes[other]) if known is not None else 0,
            (len(known.members[other]) or world_size) if known is not None else 0,
            outlives=bool(ops.end_ps[other] >= ops.end_ps[op]),
            by_peers=serves_peers(ops.name[other]),
            shortest_ps=shortest_ps[ops.name[other]],
        )
        for other in _beside(ops, op, longest_ps)
        if ops.is_comm[other]
    )


def _covered(neighbours: tuple[Neighbour, ...], length: int) -> float:
    """Share of ``length`` during which one of the neighbours ran."""
    total = reach = 0
    for one in sorted(neighbours, key=lambda neighbour: neighbour.begin_ps):
        begin, end = max(one.begin_ps, reach), min(one.end_ps, length)
        if end > begin:
            total += end - begin
            reach = end
    return total / length
