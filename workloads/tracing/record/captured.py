"""Captured CUDA graphs: calls that are kept while a stream is captured, and written down by each replay.

Note [Captured graphs]
    During a capture ops are numbered among themselves and not written; with them stand, in order, the
    beginnings and ends of forward and backward passes and of optimizers that happened meanwhile.  A replay
    issues them on the stream that replays: waits inside of the graph are as they were captured, its first op
    waits for what that stream would wait for, and that stream waits for all branches of the graph.  Storages
    of a graph live as long as it does.  Each kernel is launched by itself: that a replay is one call of the
    host is not modelled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any

import torch

from simcore.records import dataclass


@dataclass(frozen=True)
class CapturedOp:
    """One op: what :meth:`OpLog.append` was given, with waits as numbers of captured ops."""

    name: str
    kind: Any
    stream: Any
    module: str
    columns: dict[str, Any]
    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]
    waits: tuple[int, ...]


@dataclass
class CapturedGraph:
    """``ops`` and, between them, ``events``: (number of ops before it, what happened); ``stream``: the one
    that was captured.
    """

    stream: Any
    ops: list[CapturedOp] = field(default_factory=list)
    events: list[tuple[int, Callable[[], None]]] = field(default_factory=list)

    def happen(self, at: int) -> None:
        """What happened right before op number ``at`` happens again."""
        for place, event in self.events:
            if place == at:
                event()
