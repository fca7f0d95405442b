"""The host's side of a program: when launches reach the GPU, and where the host blocks.

A *segment* is a stretch of launches that the host issues without blocking.  It ends before a SYNC op and,
so that no more than a queue's depth of launches is outstanding, once per window of launches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from simcore.distinct import distinct
from simcore.graph import FlatOps, Graph, OpKind
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


def plan_launches(graph: Graph, flat: FlatOps, costs: HostCosts) -> Launches:
    """Launch times of a program's flat ops."""
    ops, rows = graph.ops, flat.row.astype(np.intp)  # looked up in several columns
    is_sync, itself = ops.kind == OpKind.SYNC, ops.kind == OpKind.HOST
    # What rows say is worked out by row, of which there are few.
    joins = np.zeros(len(ops), dtype=np.bool_)  # further members of a fused launch cost nothing
    joins[1:] = (ops.batch[1:] >= 0) & (ops.batch[1:] == ops.batch[:-1])
    free = is_sync | (ops.kind == OpKind.EVENT_RECORD) | (ops.kind == OpKind.EVENT_WAIT)
    alone = np.where(free, 0, costs.launch_ps)
    alone[itself] = np.maximum(ops.recorded_ps[itself], 0)
    cost, fused = np.where(joins & ~itself, 0, alone)[rows], joins[rows]
    heads = distinct(flat.first[:-1][flat.first[:-1] < len(rows)])  # behind which op they come is not a row's
    before = ops.batch[rows[np.maximum(heads - 1, 0)]]
    fused[heads] = (heads > 0) & (before >= 0) & (before == ops.batch[rows[heads]])
    cost[heads] = np.where(fused[heads] & ~itself[rows[heads]], 0, alone[rows[heads]])

    on_host = (is_sync | itself)[rows]
    on_gpu, host_ops = np.flatnonzero(~on_host), np.flatnonzero(on_host)
    syncs = host_ops[is_sync[rows[host_ops]]]
    looks = _window_starts(np.searchsorted(on_gpu, syncs), len(on_gpu))
    looks = looks[~fused[on_gpu[looks]]]
    begun, is_look = np.concatenate([syncs, on_gpu[looks]]), np.arange(len(syncs) + len(looks)) >= len(syncs)
    order = np.argsort(begun)
    begun, is_look = begun[order], is_look[order]
    starts = np.concatenate([[0], begun])
    length = np.diff(np.append(starts, len(rows)))
    spent = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(cost, out=spent[1:])
    offset = np.where(is_sync | itself, 0, costs.latency_ps)[rows]
    offset += spent[:-1]
    offset -= np.repeat(spent[starts], length)
    sync, room = np.full((2, len(starts)), -1, dtype=np.int64)
    sync[1:][~is_look] = syncs
    room[1:][is_look] = on_gpu[looks + (WINDOW - QUEUE_DEPTH)]
    return Launches(
        np.repeat(np.arange(len(starts), dtype=np.int32), length),
        offset,
        cost[host_ops],
        np.diff(np.append(spent[starts], spent[-1])),
        sync,
        room,
    )


def _window_starts(synced: IntArray, num_launches: int) -> IntArray:
    """Launches, counted from 0, before which the host looks whether the queue has room: every window of them,
    once it can be full since the host has waited, before the launches ``synced``.
    """
    bounds = np.concatenate([[0], synced, [num_launches]])
    counts = np.maximum(0, np.diff(bounds) - (QUEUE_DEPTH - WINDOW) + WINDOW - 1) // WINDOW
    number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    found: IntArray = np.repeat(bounds[:-1], counts) + QUEUE_DEPTH - WINDOW + number * WINDOW
    return found


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
