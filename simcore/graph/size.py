"""What a job costs to simulate, told before memory or time are spent on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from simcore.outside import limits, over, refuse_beyond_memory

if TYPE_CHECKING:
    from simcore.graph.graph import Graph

# As measured on 1,048,576 ranks of one program (6.3 GiB) and two programs of 0.8 million ops each (240 MiB).
_RANK_BYTES: Final = 6_000
_OP_BYTES: Final = 160


def refuse_too_large(where: str, *, ranks: int, ops: int) -> None:
    """InputError for a job that is beyond the limit ``ops``, or that needs more memory than there may be.

    ``ops``: op executions of a step, of ranks that run the same program once; at least so many.
    """
    if ops > limits().ops:
        raise over("ops", ops, where)
    needed = ranks * _RANK_BYTES + ops * _OP_BYTES
    refuse_beyond_memory(needed, f"{where}: this job", f"{ranks:,} ranks, programs of {ops:,} op executions")


def refuse_too_large_graph(graph: Graph, where: str) -> None:
    """As :func:`refuse_too_large`, for a graph whose references are in range."""
    lengths = np.diff(graph.template_start)
    ops = sum(float(lengths[program.template].sum(dtype=np.float64)) for program in graph.programs)
    refuse_too_large(where, ranks=graph.world_size, ops=int(ops))
