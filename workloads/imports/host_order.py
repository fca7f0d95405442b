"""In what order the host launches and blocks, thread by thread, and what it does between."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simcore.graph.ops import IntArray
from workloads.imports.host import Block, LaunchTimes
from workloads.imports.rank_ops import RankOps
from workloads.imports.threads import Threads
from workloads.imports.waits import Waits


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
    ops: RankOps, times: LaunchTimes, blocks: list[Block], begin_ps: int, threads: Threads, waits: Waits
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


def _threads(ops: RankOps, blocks: list[Block], threads: Threads) -> IntArray:
    """By entry, ops before blocks; ops without a launch call are the main thread's."""
    calls = ops.trace.calls
    known = {int(name): threads.of(int(name)) for name in np.unique(calls.thread)}
    launching = [known[int(calls.thread[call])] if call >= 0 else 0 for call in ops.call.tolist()]
    return np.array([*launching, *(block.thread for block in blocks)], dtype=np.int64)


def _early(ops: RankOps, blocks: list[Block], order: IntArray, thread: IntArray, waits: Waits) -> IntArray:
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
