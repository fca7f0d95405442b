"""When the host of a rank launches, worked out from when its items ended, without an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simcore.engine.launches import Launches, plan_launches
from simcore.engine.layout import StreamLayout
from simcore.graph import OpKind
from simcore.graph.kinds import is_on_host
from simcore.records import dataclass

if TYPE_CHECKING:
    from simcore.engine.launches import HostCosts
    from simcore.graph import Graph, Program
    from simcore.graph.graph import Int32Array
    from simcore.graph.kinds import BoolArray
    from simcore.graph.ops import IntArray


@dataclass(frozen=True, eq=False, slots=True)
class HostPlay:
    """The host wanted to begin segment ``s`` at ``begin_ps[s]`` and began it at ``base_ps[s]``; the launch of
    flat op ``i`` reached the GPU (a host op: the host reached it) at ``launched_ps[i]``.
    """

    begin_ps: IntArray
    base_ps: IntArray
    launched_ps: IntArray


@dataclass(frozen=True, eq=False, slots=True)
class HostSchedule:
    """The host's side of a program: before segment ``waiting[i]`` it waits for all of ``awaited`` from
    ``first[i]`` on, up to those of the next one, to end.
    """

    launches: Launches
    host_ops: IntArray
    is_sync: BoolArray  # of the host ops
    on_gpu: BoolArray  # of all flat ops
    waiting: IntArray
    first: IntArray
    awaited: Int32Array

    @classmethod
    def of(cls, graph: Graph, program: Program, costs: HostCosts) -> HostSchedule:
        """The schedule of a program whose launches cost the host so much."""
        flat = graph.flat_ops(program)
        launches = plan_launches(graph, flat, costs)
        layout = StreamLayout.of(graph, flat, launches)
        waiting, ops = layout.host_waits(graph, flat.row, launches)
        item_at = np.full(len(flat), -1, dtype=np.int32)
        item_at[layout.order] = layout.item_of
        item = item_at[ops]
        # The host waits for whole items.
        begin = layout.heads[item]
        count = np.append(layout.heads, len(layout.order))[item + 1] - begin
        first = np.cumsum(count) - count
        awaited = layout.order[np.repeat(begin - first, count) + np.arange(count.sum())]
        begins = np.append(True, waiting[1:] != waiting[:-1])[: len(waiting)]
        on_gpu = ~is_on_host(graph.ops.kind)[flat.row]
        is_sync = graph.ops.kind[flat.row[layout.host_ops]] == OpKind.SYNC
        return cls(launches, layout.host_ops, is_sync, on_gpu, waiting[begins], first[begins], awaited)

    def play(self, end_ps: IntArray) -> HostPlay:
        """What the host does when flat ops end at ``end_ps``."""
        awaited = np.zeros(len(self.launches.cost_ps), dtype=np.int64)
        if len(self.waiting):
            awaited[self.waiting] = np.maximum(0, np.maximum.reduceat(end_ps[self.awaited], self.first))
        # A segment begins when the host is free and what it waits for has ended: the latest such end so far,
        # plus what the host has spent since.
        spent = np.cumsum(self.launches.cost_ps)
        before = spent - self.launches.cost_ps
        base = np.maximum.accumulate(awaited - before) + before
        begin = np.concatenate([[0], base[:-1] + self.launches.cost_ps[:-1]])
        return HostPlay(begin, base, base[self.launches.segment] + self.launches.offset)
