"""A stage's rank whose storages were played on the caching allocator."""

from __future__ import annotations

from functools import cached_property
from typing import Final

from simcore.memory.caching import AllocatorSettings, PlayedMemory, play
from simcore.memory.lifetimes import (
    EMBEDDING,
    HEAD,
    NO_LAYER,
    OPTIMIZER,
    StageLifetimes,
    StorageHolder,
)
from simcore.records import dataclass

_PASSES: Final = {"F": "forward", "B": "backward", "I": "input gradients", "W": "weight gradients"}
_ENDS: Final = {EMBEDDING: "the embedding", HEAD: "the head"}

#: Of the room there is: a stage that reserves more may run with less.
_ROOMY: Final = 0.85
#: How often what lies between allocated and reserved is halved to find with how much it runs.
_HALVINGS: Final = 3


@dataclass(frozen=True)
class HeldStorage:
    """``count`` live storages of ``num_bytes`` each, alike in holder and microbatch (-1: none)."""

    num_bytes: int
    count: int
    holder: StorageHolder
    microbatch: int


@dataclass(frozen=True)
class PlayedStage:
    """A stage's rank: lifetimes of its storages, what the allocator made of them, and what the closed form
    says (-1: there is none, of a program that was traced).
    """

    stage: int
    lifetimes: StageLifetimes
    memory: PlayedMemory
    settings: AllocatorSettings
    closed_form_bytes: int = -1

    def needs_bytes(self, room_bytes: int) -> int:
        """Bytes for the allocator with which the stage runs, of ``room_bytes`` that there are.

        What it reserves where that leaves room.  Else it is played on smaller devices, too: one that is full
        gives cached blocks back before it fails.
        """
        reserved, allocated = self.memory.peak_reserved, self.memory.peak_allocated
        if allocated > room_bytes or reserved <= _ROOMY * room_bytes:
            return allocated if allocated > room_bytes else reserved
        if reserved > room_bytes and not self._runs_with(room_bytes):
            return reserved
        least, enough = allocated, min(reserved, room_bytes)
        for _ in range(_HALVINGS):
            middle = (least + enough) // 2
            least, enough = (least, middle) if self._runs_with(middle) else (middle, enough)
        return enough

    def _runs_with(self, capacity_bytes: int) -> bool:
        return play(self.lifetimes.events, self.settings, capacity_bytes).full_at < 0

    @property
    def peak_event(self) -> int:
        """The event at which most is allocated."""
        return self.memory.peak_at

    @property
    def instant(self) -> str:
        """That event in words: "microbatch 3's forward of layer 12"."""
        lifetimes, at = self.lifetimes, self.peak_event
        number = int(lifetimes.action[at]) if at >= 0 else -1
        if number < 0:
            return "the optimizer's step" if number == OPTIMIZER else "what lives through the step"
        action, layer = lifetimes.actions[number], int(lifetimes.layer[at])
        if layer == NO_LAYER:  # what is received or sent, or a release: the pass tells the layer
            near = lifetimes.layer[: at + 1][(lifetimes.action[: at + 1] == number)]
            known = near[near != NO_LAYER]
            layer = int(known[-1]) if len(known) else NO_LAYER
        of = f" of {_ENDS.get(layer, f'layer {layer}')}" if layer != NO_LAYER else ""
        return f"microbatch {action.microbatch}'s {_PASSES[action.kind]}{of}"

    @cached_property
    def at_peak(self) -> tuple[HeldStorage, ...]:
        """What is live at the peak, the largest storages first."""
        events, lifetimes = self.lifetimes.events, self.lifetimes
        live: dict[int, int] = {}
        for k, (storage, num_bytes) in enumerate(
            zip(events.storage[: self.peak_event + 1].tolist(), events.num_bytes.tolist(), strict=False)
        ):
            if num_bytes >= 0:
                live[storage] = k
            else:
                del live[storage]
        alike: dict[tuple[int, int, int], int] = {}
        for k in live.values():
            key = int(events.num_bytes[k]), int(lifetimes.holder[k]), int(lifetimes.microbatch[k])
            alike[key] = alike.get(key, 0) + 1
        found = [
            HeldStorage(num_bytes, count, lifetimes.holders[holder], microbatch)
            for (num_bytes, holder, microbatch), count in alike.items()
        ]
        return tuple(sorted(found, key=lambda one: -one.num_bytes))

    @property
    def by_category(self) -> dict[str, int]:
        """Bytes at the peak by category, the largest first."""
        found: dict[str, int] = {}
        for one in self.at_peak:
            found[one.holder.category] = found.get(one.holder.category, 0) + one.num_bytes * one.count
        return dict(sorted(found.items(), key=lambda item: -item[1]))
