"""When launches reached the GPU, and in what order the host launches and blocks, thread by thread.

Times of launches are kept as recorded; what a blocking call waited for is found
(:mod:`~workloads.imports.recording.host`), so that the wait is resolved when the graph runs.
"""

from __future__ import annotations

import numpy as np

from simcore.graph.ops import IntArray, told_apart
from simcore.records import dataclass
from simcore.units import PS_PER_US
from workloads.imports.recorded import BoolArray
from workloads.imports.recording.host import SLOW_CALL_PS, HostBlock, HostThreads
from workloads.imports.recording.rank_ops import RankOps
from workloads.imports.recording.waits import WAKE_PS, OpWaits

_DEFAULT_LATENCY_PS = 8 * PS_PER_US
_IDLE_PS = 50 * PS_PER_US  # a stream that was idle for this long waited for the launch alone
_OFTEN = 3  # ops of a kind whose gaps have a median worth its name
_PAST = 16  # ops of a lane by which places are told apart
_MAX_LATENCY_PS = 100 * PS_PER_US  # a longer way from launch call to start has another reason


def launch_latency(ops: RankOps) -> int:
    """Median time from a launch call to the start on a stream that was idle, ps."""
    launched = ops.call >= 0
    called = np.where(launched, ops.trace.calls.start_ps[ops.call] if len(ops.trace.calls) else 0, 0)
    latency = ops.start_ps - called
    idle = launched & (called > ops.free_from() + _IDLE_PS) & (latency > 0) & (latency < _MAX_LATENCY_PS)
    return int(np.median(latency[idle])) if idle.any() else _DEFAULT_LATENCY_PS


@dataclass(frozen=True)
class LaunchTimes:
    """Per op: when its launch reached the GPU, and the gap that then still passed before it started, ps.

    ``host_bound``: the launch decided when it started.  ``unexplained``: the gap is too long for a device
    that starts one kernel after another; the recording does not say what the op waited for.
    ``unexplained_from_ps``: when each of those gaps began, as recorded.
    """

    reached_ps: IntArray
    gap_ps: IntArray
    host_bound: BoolArray
    unexplained: BoolArray
    unexplained_from_ps: IntArray


def launch_times(ops: RankOps, waits: OpWaits, latency_ps: int, *, typical: bool = False) -> LaunchTimes:
    """Explain each start by launch, stream and waits; what is left over is the gap.

    With ``typical`` every launch takes the rank's typical latency and every op the typical gap of ops like
    it (:func:`_typical_gaps`): the replay then shows how much of the step the structure explains.  Ops that
    nothing recorded precedes, and unexplained ones whose launch was not recorded, keep their gaps: what they
    waited for is not in the recording.
    """
    free = np.where(ops.before >= 0, ops.end_ps[ops.before], -(1 << 62))
    ready = np.maximum(free, waits.latest_end(ops))
    called = ops.call >= 0
    natural = ops.issue_ps + np.where(called, latency_ps, 0)
    returned = np.where(called, ops.trace.calls.end_ps[ops.call] if len(ops.trace.calls) else 0, 0)
    # A slow call (loading a module, staging pageable memory) launches at some time before it returns.
    slow = called & (returned - ops.issue_ps > SLOW_CALL_PS) & (ops.start_ps > ready + WAKE_PS)
    near = ops.start_ps - np.where(slow, returned, ops.issue_ps) <= _MAX_LATENCY_PS
    host_bound = called & near & ((natural > ready) | slow)
    reached = np.where(host_bound, ops.start_ps, np.minimum(natural, ops.start_ps))
    for _ in range(2):  # along lanes and waits; twice settles all but chains of ties
        np.maximum.at(reached, waits.target, reached[waits.source])
        for lane in range(len(ops.lane_names)):
            members = ops.in_lane(lane)
            reached[members] = np.maximum.accumulate(reached[members])
    reached = np.minimum(reached, ops.start_ps)
    gap = np.maximum(0, ops.start_ps - np.maximum(ready, reached))
    unexplained = gap > WAKE_PS
    since = (ops.start_ps - gap)[unexplained]
    if typical:
        late = slow & host_bound
        reached = np.where(late, _typical_starts(ops, returned, late), natural)
        for lane in range(len(ops.lane_names)):
            members = ops.in_lane(lane)
            reached[members] = np.maximum.accumulate(reached[members])
        kept = (ops.before < 0) | (unexplained & ~called)
        gap = np.where(host_bound, 0, np.where(kept, gap, _typical_gaps(ops, gap, host_bound, unexplained)))
    return LaunchTimes(reached, gap, host_bound, unexplained, since)


def _typical_gaps(ops: RankOps, gap: IntArray, host_bound: BoolArray, unexplained: BoolArray) -> IntArray:
    """For each op the median gap of ops like it: of one name, after the same ops of its lane.

    Of the places that come ``_OFTEN`` times the one with the longest past counts, up to ``_PAST`` ops: a gap
    that comes again there is typical, whatever explains it.  Where not even the op before comes so often,
    explained gaps take the median of all kernels or all copies, in the same launch as the op before or not,
    and unexplained ones are left out.  Ops that the host held up tell no gap.
    """
    gpu = ops.trace.gpu
    behind = ops.before >= 0
    is_graph = behind & (ops.call >= 0) & (ops.call == ops.call[ops.before])
    tells = ~host_bound & behind
    kinds = np.stack([gpu.kind[ops.row] == 0, is_graph]).astype(np.int64)
    usual, _ = _medians(kinds, gap, tells & ~unexplained)
    typical = np.where(unexplained, 0, usual)
    place, past = gpu.name[ops.row] * 2 + is_graph, ops.before
    for _ in range(_PAST.bit_length()):
        before = np.where(past >= 0, place[past], -1)
        keys = np.stack([place, before])
        median, count = _medians(keys, gap, tells)
        typical = np.where(count >= _OFTEN, median, typical)
        place = np.unique(keys, axis=1, return_inverse=True)[1].reshape(-1)
        past = np.where(past >= 0, past[past], -1)
    return typical


def _typical_starts(ops: RankOps, returned: IntArray, slow: BoolArray) -> IntArray:
    """When launches of slow calls reached the GPU: before they returned, as calls of their name do."""
    name = ops.trace.calls.name[ops.call] if len(ops.trace.calls) else ops.call
    usual, _ = _medians(name[None], ops.start_ps - returned, slow)
    return returned + usual


def _medians(keys: IntArray, values: IntArray, tells: BoolArray) -> tuple[IntArray, IntArray]:
    """For each column of ``keys`` the median of ``values`` of equal columns that tell, and their number."""
    _, group = np.unique(keys, axis=1, return_inverse=True)
    group = group.reshape(-1)
    count = np.bincount(group[tells], minlength=int(group.max()) + 1)
    order = np.lexsort((values[tells], group[tells]))
    middle = np.cumsum(count) - count + (count - 1) // 2
    ordered = np.append(values[tells][order], 0)
    median = np.where(count > 0, ordered[np.minimum(middle, len(order))], 0)
    return median[group], count[group]


@dataclass(frozen=True)
class HostOrder:
    """Launches and blocks in the order in which the graph issues them.

    ``op[i]`` is a GPU op (launched ``pause_ps[i]`` after the entry before it of the same thread was done) or
    -1, then ``block[i]`` is a block.  Entries of threads other than 0 stand as early as what they depend on.
    """

    op: IntArray
    block: IntArray
    pause_ps: IntArray
    thread: IntArray


def host_order(
    ops: RankOps,
    times: LaunchTimes,
    blocks: list[HostBlock],
    begin_ps: int,
    threads: HostThreads,
    waits: OpWaits,
) -> HostOrder:
    """The order of launches and blocks, and each thread's time between its own, from ``begin_ps`` on."""
    starts = np.array([block.start_ps for block in blocks], dtype=np.int64)
    done = np.array(
        [max(block.start_ps, *(int(ops.end_ps[op]) for op in block.waits_for)) for block in blocks],
        dtype=np.int64,
    )
    section = 2 * np.searchsorted(starts, ops.issue_ps, side="left")
    for lane in range(len(ops.lane_names)):
        members = ops.in_lane(lane)
        section[members] = np.maximum.accumulate(section[members])
    num_ops, num_blocks = len(ops), len(blocks)
    place = np.concatenate([section, 2 * np.arange(num_blocks) + 1])
    wanted = np.concatenate([times.reached_ps, starts])
    reached = np.concatenate([times.reached_ps, done])
    thread = _threads(ops, blocks, threads)
    order = np.lexsort((np.arange(len(place)), wanted, place))
    pause = np.zeros(len(order), dtype=np.int64)
    for number in range(threads.count):
        mine = order[thread[order] == number]
        now = np.maximum.accumulate(np.concatenate([[begin_ps], reached[mine]]))
        pause[mine] = np.maximum(0, wanted[mine] - now[:-1])
    if threads.count > 1:
        order = _early(ops, blocks, order, thread, waits)
    is_op = order < num_ops
    return HostOrder(
        np.where(is_op, order, -1), np.where(is_op, -1, order - num_ops), pause[order], thread[order]
    )


def _threads(ops: RankOps, blocks: list[HostBlock], threads: HostThreads) -> IntArray:
    """By entry, ops before blocks; ops without a launch call are the main thread's."""
    calls = ops.trace.calls
    names, number = told_apart(calls.thread)
    known = np.array([*map(threads.of, names.tolist()), 0], dtype=np.int64)
    launching = known[np.append(number, -1)[ops.call]]  # the last one is that of no call
    return np.append(launching, np.array([block.thread for block in blocks], dtype=np.int64))


def _early(
    ops: RankOps, blocks: list[HostBlock], order: IntArray, thread: IntArray, waits: OpWaits
) -> IntArray:
    """Entries of further threads moved up to just behind what they depend on: nobody else holds them up."""
    num_ops = len(ops)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    sources: dict[int, list[int]] = {}
    for source, target in zip(waits.source.tolist(), waits.target.tolist(), strict=True):
        sources.setdefault(target, []).append(source)
    last: dict[int, int] = {}
    behind = np.empty(len(order), dtype=np.int64)  # the place that an entry stands in or just behind
    for entry in order.tolist():
        number = int(thread[entry])
        if number == 0:
            behind[entry] = place[entry]
            continue
        needed = [last[number]] if number in last else []
        if entry < num_ops:
            needed += [int(ops.before[entry])] if ops.before[entry] >= 0 else []
            needed += sources.get(entry, [])
        else:
            needed += blocks[entry - num_ops].waits_for
        known = [int(behind[other]) for other in needed if place[other] < place[entry]]
        behind[entry] = max(known, default=-1)
        last[number] = entry
    main = thread[order] == 0
    return order[np.lexsort((place[order], ~main, behind[order]))]
