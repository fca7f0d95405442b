"""mpi4py, with which some programs tell each other where to meet: ranks are those that torchrun would give.

Objects go between ranks as torch's do once a process group is there; before that, all ranks are taken to give
what this one gives.
"""

from __future__ import annotations

import functools
import operator
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist

from workloads.tracing.fake import process_groups

_OPERATORS = {"SUM": operator.add, "PROD": operator.mul, "MAX": max, "MIN": min}


class World:
    """``MPI.COMM_WORLD``."""

    @property
    def rank(self) -> int:
        """Of this process."""
        return process_groups.place_in_world[0]

    @property
    def size(self) -> int:
        """Ranks."""
        return process_groups.place_in_world[1]

    def Get_rank(self) -> int:  # noqa: N802
        """As :attr:`rank`."""
        return self.rank

    def Get_size(self) -> int:  # noqa: N802
        """As :attr:`size`."""
        return self.size

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """What ``root`` has."""
        if dist.is_initialized():
            given = [obj]
            dist.broadcast_object_list(given, src=root)
            return given[0]
        return obj

    def allgather(self, obj: Any) -> list[Any]:
        """What each rank has."""
        given = [obj] * self.size
        if dist.is_initialized():
            dist.all_gather_object(given, obj)
        return given

    def gather(self, obj: Any, root: int = 0) -> list[Any] | None:
        """What each rank has, on ``root``."""
        given = self.allgather(obj)
        return given if self.rank == root else None

    def allreduce(self, obj: Any, op: Any = operator.add) -> Any:
        """What all ranks have together."""
        return functools.reduce(op, self.allgather(obj))

    def barrier(self) -> None:
        """Nobody is waited for."""

    Barrier = barrier


def members(name: str) -> dict[str, Any] | None:
    """What is in a module of mpi4py; None for one that is not stood in for."""
    world = World()
    mpi = SimpleNamespace(COMM_WORLD=world, Get_processor_name=lambda: "localhost", **_OPERATORS)
    return {"mpi4py": {"MPI": mpi}, "mpi4py.MPI": vars(mpi)}.get(name)
