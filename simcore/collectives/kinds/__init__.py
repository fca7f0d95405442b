"""Collectives: one kind, one file.  Each says what it moves, how, and how NCCL runs it.

A file of this folder is found by being here, at the first look-up; see Note [A new collective] in
:mod:`simcore.collectives.kinds.collective`.
"""

from simcore.collectives.kinds.collective import (
    COLLECTIVES,
    Collective,
    collective_named,
    register,
    unknown_collective,
)
from simcore.collectives.kinds.schedule import Schedule, Transfer, split
from simcore.collectives.kinds.send_recv import SEND_RECV


def kind_of(name: str) -> Collective:
    """The kind of what a graph, plan or recording calls ``name``: a message for what is no collective here.

    Graphs are checked for unknown names and planners refuse them; this asks for sizes and sums alone.
    """
    return collective_named(name) if name.partition(":")[0] in COLLECTIVES else SEND_RECV


__all__ = [
    "COLLECTIVES",
    "SEND_RECV",
    "Collective",
    "Schedule",
    "Transfer",
    "collective_named",
    "kind_of",
    "register",
    "split",
    "unknown_collective",
]
