"""The host's side of a program: when launches reach the GPU, and where the host blocks.

A *segment* is a stretch of launches that the host issues without blocking.  It ends before a SYNC op and,
so that no more than a queue's depth of launches is outstanding, once per window of launches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from simcore.graph import Graph, OpKind
from simcore.graph.graph import Int32Array
from simcore.graph.ops import IntArray
from simcore.records import dataclass
from simcore.units import ps_from_s

if TYPE_CHECKING:
    from simcore.engine.result import RankTimes
    from simcore.hardware import GpuSpec

QUEUE_DEPTH = 1024  # launches that may be outstanding; CUDA blocks at about 650-1024
WINDOW = 256  # the bound is checked once per this many launches


@dataclass(frozen=True)
class HostCosts:
    """Host times of the launching thread, ps: one launch call, and launch call to start on an idle stream."""

    launch_ps: int = 0
    latency_ps: int = 0


def host_costs(gpu: GpuSpec) -> HostCosts:
    """What launching on a GPU costs its host."""
    return HostCosts(ps_from_s(gpu.launch_overhead_s), ps_from_s(gpu.launch_latency_s))


@dataclass(frozen=True)
class Launches:
    """Host schedule of a program's flat ops.

    ``segment[i]`` launches op ``i``, ``offset[i]`` ps after the segment's base it reaches the GPU (for host
    ops: the host reaches it), ``host_ps[k]`` is the host's time for the ``k``-th of its own ops.  Per
    segment: ``cost_ps`` that the host spends, ``sync`` op that it begins with (-1: none) and the op that must
    have ended because of the queue's depth, ``room`` (-1: none).
    """

    segment: Int32Array
    offset: IntArray
    host_ps: IntArray
    cost_ps: IntArray
    sync: IntArray
    room: IntArray


def plan_launches(graph: Graph, rows: Int32Array, costs: HostCosts) -> Launches:
    """Launch times of the flat ops at op-table ``rows``."""
    size = len(rows)
    place = rows.astype(np.intp)  # looked up in several columns
    kind, batch = graph.ops.kind[place], graph.ops.batch[place]
    is_sync = kind == OpKind.SYNC
    on_host = is_sync | (kind == OpKind.HOST)
    fused = np.zeros(size, dtype=np.bool_)  # further members of a fused launch cost nothing
    fused[1:] = (batch[1:] >= 0) & (batch[1:] == batch[:-1])
    no_launch = is_sync | fused | (kind == OpKind.EVENT_RECORD) | (kind == OpKind.EVENT_WAIT)
    cost = np.where(no_launch, 0, costs.launch_ps)
    itself = np.flatnonzero(kind == OpKind.HOST)
    cost[itself] = np.maximum(graph.ops.recorded_ps[place[itself]], 0)

    launched = np.cumsum(~on_host)
    begins = is_sync | _window_starts(launched, is_sync, on_host | fused)
    segment = np.cumsum(begins, dtype=np.int32)
    spent = np.concatenate([[0], np.cumsum(cost)])
    starts = np.concatenate([[0], np.flatnonzero(begins)])
    offset = spent[:-1] - spent[starts][segment] + np.where(on_host, 0, costs.latency_ps)
    per_segment = np.diff(np.concatenate([spent[starts], spent[-1:]]))

    begun = starts[1:]
    for_room = begun[~is_sync[begun]]
    behind = launched[for_room] - 1 + WINDOW - QUEUE_DEPTH
    sync, room = np.full((2, len(starts)), -1, dtype=np.int64)
    sync[1:][is_sync[begun]] = begun[is_sync[begun]]
    room[1:][~is_sync[begun]] = np.flatnonzero(~on_host)[behind]
    return Launches(segment, offset, cost[on_host], per_segment, sync, room)


def _window_starts(
    launched: IntArray, is_sync: npt.NDArray[np.bool_], not_here: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Where the host looks whether the queue has room: every window of launches, once it can be full."""
    since = launched - np.maximum.accumulate(np.where(is_sync, launched, 0))
    behind = np.flatnonzero(since > QUEUE_DEPTH - WINDOW)
    starts = np.zeros(len(since), dtype=np.bool_)
    starts[behind] = since[behind] % WINDOW == 1
    return starts & ~not_here


def set_host_times(
    launches: Launches,
    host_ops: IntArray,
    is_sync: npt.NDArray[np.bool_],
    begin_ps: IntArray,
    base_ps: IntArray,
    times: RankTimes,
) -> None:
    """HOST ops last their host time; a SYNC lasts from when the host began to wait until it went on."""
    segment = launches.segment[host_ops]
    base = base_ps[segment]
    reached = base + launches.offset[host_ops]
    times.ready_ps[host_ops] = times.start_ps[host_ops] = np.where(is_sync, begin_ps[segment], reached)
    times.end_ps[host_ops] = np.where(is_sync, base, reached + launches.host_ps)
