"""When the host of a rank launches, worked out from when its items ended, without an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simcore.engine.launches import Launches, plan_launches
from simcore.engine.layout import StreamLayout
from simcore.graph import OpKind
from simcore.graph.kinds import is_communication, is_on_host
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
    """The host's side of a program: before segment ``waiting[i]`` it waits for item ``awaited[i]`` to end."""

    launches: Launches
    host_ops: IntArray
    is_sync: BoolArray  # of the host ops
    on_gpu: BoolArray  # of all flat ops
    order: Int32Array
    heads: IntArray
    waiting: IntArray
    awaited: IntArray

    @classmethod
    def of(cls, graph: Graph, program: Program, costs: HostCosts) -> HostSchedule:
        """The schedule of a program whose launches cost the host so much."""
        flat = graph.flat_ops(program)
        kind = graph.ops.kind[flat.row]
        launches = plan_launches(graph, flat.row, costs)
        layout = StreamLayout.of(graph, flat, launches, is_communication(kind))
        item_at = np.full(len(flat), -1, dtype=np.int64)
        item_at[layout.order] = layout.item_of
        waiting, ops = layout.host_waits(graph, flat.row, launches)
        host_ops = layout.host_ops
        return cls(
            launches,
            host_ops,
            kind[host_ops] == OpKind.SYNC,
            ~is_on_host(kind),
            layout.order,
            layout.heads,
            waiting,
            item_at[ops],
        )

    def play(self, end_ps: IntArray) -> HostPlay:
        """What the host does when flat ops end at ``end_ps``."""
        awaited = np.zeros(len(self.launches.cost_ps), dtype=np.int64)
        if len(self.waiting):
            item_end = np.maximum.reduceat(end_ps[self.order], self.heads)
            np.maximum.at(awaited, self.waiting, item_end[self.awaited])
        # A segment begins when the host is free and what it waits for has ended: the latest such end so far,
        # plus what the host has spent since.
        spent = np.cumsum(self.launches.cost_ps)
        before = spent - self.launches.cost_ps
        base = np.maximum.accumulate(awaited - before) + before
        begin = np.concatenate([[0], base[:-1] + self.launches.cost_ps[:-1]])
        return HostPlay(begin, base, base[self.launches.segment] + self.launches.offset)
