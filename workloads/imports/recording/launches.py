"""When launches reached the GPU, and in what order the host launches and blocks, thread by thread.

Times of launches are kept as recorded; what a blocking call waited for is found
(:mod:`~workloads.imports.recording.host`), so that the wait is resolved when the graph runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simcore.graph.ops import IntArray
from simcore.units import PS_PER_US
from workloads.imports.recorded import BoolArray
from workloads.imports.recording.host import SLOW_CALL_PS, HostBlock, HostThreads
from workloads.imports.recording.rank_ops import RankOps
from workloads.imports.recording.waits import WAKE_PS, OpWaits

_DEFAULT_LATENCY_PS = 8 * PS_PER_US
_IDLE_PS = 50 * PS_PER_US  # a stream that was idle for this long waited for the launch alone
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
    ``unexplained_ps`` is the sum of those gaps as recorded, ``unexplained_from_ps`` when each began.
    """

    reached_ps: IntArray
    gap_ps: IntArray
    host_bound: BoolArray
    unexplained: BoolArray
    unexplained_ps: int
    unexplained_from_ps: IntArray


def launch_times(ops: RankOps, waits: OpWaits, latency_ps: int, *, typical: bool = False) -> LaunchTimes:
    """Explain each start by launch, stream and waits; what is left over is the gap.

    With ``typical`` every launch takes the rank's typical latency and every op its typical gap, and what is
    unexplained is left out: the replay then shows how much of the step the structure explains.  Ops whose
    launch was not recorded keep their unexplained gaps: it is the host that would explain them.
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
    unexplained_ps = int(gap[unexplained].sum())
    since = (ops.start_ps - gap)[unexplained]
    if typical:
        behind = ~host_bound & ~unexplained
        usual = int(np.median(gap[behind])) if behind.any() else 0
        reached = np.where(slow & host_bound, returned, natural)
        for lane in range(len(ops.lane_names)):
            members = ops.in_lane(lane)
            reached[members] = np.maximum.accumulate(reached[members])
        gap = np.where(host_bound, 0, np.where(unexplained & ~called, gap, usual))
    return LaunchTimes(reached, gap, host_bound, unexplained, unexplained_ps, since)


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
    known = {int(name): threads.of(int(name)) for name in np.unique(calls.thread)}
    launching = [known[int(calls.thread[call])] if call >= 0 else 0 for call in ops.call.tolist()]
    return np.array([*launching, *(block.thread for block in blocks)], dtype=np.int64)


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
