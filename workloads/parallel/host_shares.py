"""The share of one layer that is back from the host, or has not left; Note [A layer's share] of
``workloads/models/offload.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field

from simcore.graph.schedules import Action
from simcore.records import dataclass
from workloads.models.offload import share_bytes
from workloads.models.pieces import ModelPiece
from workloads.parallel.stages import Chunk


def largest_share(chunks: Sequence[Chunk]) -> int:
    """Bytes of the largest share of a stage: such a one is there in every pass."""
    return max((share_bytes(piece) for chunk in chunks for piece in chunk.pieces), default=0)


@dataclass
class HostShare:
    """What is there of the layers of ``chunks`` while ``actions`` are played.

    ``alloc`` makes a storage of so many bytes and gives its number, ``free`` releases it.
    """

    actions: Sequence[Action]
    chunks: Sequence[Chunk]
    alloc: Callable[[int], int]
    free: Callable[[int], None]
    _held: int = 0
    _storage: int = -1
    _backwards: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._backwards = [number for number, one in enumerate(self.actions) if one.kind in ("B", "I")]

    def forward(self, number: int, position: int) -> None:
        """Behind the forward of the piece at ``position`` in action ``number``."""
        action = self.actions[number]
        pieces = self.chunks[action.chunk].pieces
        ahead = self._next_backward(number)
        if ahead is None or not share_bytes(pieces[position]) or _last_share(pieces[position + 1 :]):
            return
        if (ahead.chunk, ahead.microbatch) == (action.chunk, action.microbatch):
            self._hold(share_bytes(pieces[position]))

    def before(self, piece: ModelPiece) -> None:
        """Before the backward of ``piece``."""
        if share_bytes(piece):
            self._hold(share_bytes(piece))

    def behind(self, number: int, position: int) -> None:
        """Behind the backward of the piece at ``position`` in action ``number``."""
        pieces = self.chunks[self.actions[number].chunk].pieces
        if not share_bytes(pieces[position]):
            return
        found, ahead = _last_share(pieces[:position]), self._next_backward(number)
        if not found and ahead is not None and self._is_forwarded(ahead, number):
            found = _last_share(self.chunks[ahead.chunk].pieces)
        self._hold(found)

    def _hold(self, num_bytes: int) -> None:
        if num_bytes == self._held:
            return
        if self._held:
            self.free(self._storage)
        self._held = num_bytes
        if num_bytes:
            self._storage = self.alloc(num_bytes)

    def _next_backward(self, number: int) -> Action | None:
        return next((self.actions[k] for k in self._backwards if k > number), None)

    def _is_forwarded(self, ahead: Action, number: int) -> bool:
        forward = ("F", ahead.chunk, ahead.microbatch)
        return any((one.kind, one.chunk, one.microbatch) == forward for one in self.actions[:number])


def _last_share(pieces: Sequence[ModelPiece]) -> int:
    return next((share_bytes(piece) for piece in reversed(pieces) if share_bytes(piece)), 0)
