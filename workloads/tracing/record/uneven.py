"""Exchanges of which each rank sees its own part: all members of a group get the size that lasts longest.

An all-to-all of uneven splits lasts as long as the port that sends or receives most.  A rank knows what it
sends and what it gets; the fullest port is that of the member that knows of the largest.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from simcore.graph import Graph, OpKind
from simcore.graph.ops import IntArray
from simcore.graph.verify import group_matrix

#: What a collective whose splits are uneven is called.
UNEVEN_EXCHANGE = "nccl::all_to_allv"


def levelled(graph: Graph) -> Graph:
    """``graph``, in which members of a group agree on the size of each uneven exchange: the largest that one
    of them sees.  Calls that differ in anything else stay as they are.
    """
    ops = graph.ops
    uneven = ops.name.equals(UNEVEN_EXCHANGE)
    if not uneven.any():
        return graph
    sizes = ops.num_bytes.copy()
    played = [graph.flat_ops(program).row for program in graph.programs]
    owner = graph.program_of_rank.astype(np.int64)
    changed = True
    while changed:  # templates are played more than once: sizes only grow, so this ends
        changed = False
        for name in sorted({ops.group[int(row)] for row in np.flatnonzero(uneven)}):
            calls = ops.group.equals(name) & (ops.kind == OpKind.COLLECTIVE)
            issued = [rows[calls[rows]] for rows in played]
            for programs in np.unique(owner[group_matrix(graph.groups[name])], axis=0):
                changed |= _level([issued[one] for one in np.unique(programs)], uneven, sizes)
    return replace(graph, ops=replace(ops, num_bytes=sizes))


def _level(issued: list[IntArray], uneven: npt.NDArray[np.bool_], sizes: IntArray) -> bool:
    """Whether an exchange of one group has grown; ``issued``: rows of its members' calls."""
    if len({len(rows) for rows in issued}) != 1:
        return False
    rows = np.stack(issued)
    at = np.flatnonzero(uneven[rows].any(axis=0))
    longest = np.broadcast_to(sizes[rows[:, at]].max(axis=0), (len(rows), len(at)))
    grows = uneven[rows[:, at]] & (sizes[rows[:, at]] < longest)
    np.maximum.at(sizes, rows[:, at][grows], longest[grows])
    return bool(grows.any())
