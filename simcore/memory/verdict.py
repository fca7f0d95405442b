"""Will it fit?  A verdict in words, with the margin that predictions of memory have missed by.

Note [A verdict with a margin]
    What a stage needs is predicted; measured peaks were so and so many times as large as predicted ones
    (:class:`MemoryMisses`).  The chance that a job fits is the share of those misses that its room allows
    for: from 90% on it fits, up to 10% it does not, between the two it may not.  The margin in GiB is half of
    what 80% of the misses span.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

from simcore.records import dataclass
from simcore.units import room_unit

Word = Literal["fits", "may not fit", "does not fit"]

#: Shares of misses below and above the band.
_LOW, _HIGH = 0.1, 0.9
#: Room that is as good as any, where a stage needs next to nothing.
_MUCH: Final = 1e9


@dataclass(frozen=True)
class MemoryMisses:
    """``ratios`` of measured to predicted peaks, ascending, their ``weights`` (they add up to 1), and where
    they come from.
    """

    ratios: tuple[float, ...]
    weights: tuple[float, ...]
    source: str

    def below(self, ratio: float) -> float:
        """The share of misses that are at most ``ratio``."""
        return sum(weight for one, weight in zip(self.ratios, self.weights, strict=True) if one <= ratio)

    def quantile(self, share: float) -> float:
        """The smallest miss that at least ``share`` of all do not exceed."""
        total = 0.0
        for ratio, weight in zip(self.ratios, self.weights, strict=True):
            total += weight
            if total >= share - 1e-12:
                return ratio
        return self.ratios[-1]

    @property
    def half_width(self) -> float:
        """Half of what 80% of the misses span."""
        return (self.quantile(_HIGH) - self.quantile(_LOW)) / 2


@dataclass(frozen=True)
class StageNeed:
    """Bytes that a stage's ranks need of what a GPU has, and when (``instant``, "" where nobody knows)."""

    stage: int
    needs_bytes: int
    instant: str = ""


@dataclass(frozen=True)
class MemoryVerdict:
    """Of the stage with the least room: ``chance`` that it fits, ``margin_bytes`` of the prediction."""

    need: StageNeed
    available_bytes: int
    chance: float
    margin_bytes: int
    source: str

    @property
    def word(self) -> Word:
        """The verdict."""
        if self.chance >= _HIGH:
            return "fits"
        return "does not fit" if self.chance <= _LOW else "may not fit"

    @property
    def room_bytes(self) -> int:
        """What is left; less than 0: what is missing."""
        return self.available_bytes - self.need.needs_bytes

    def __str__(self) -> str:
        scale, unit = room_unit(self.room_bytes)
        room, margin = self.room_bytes / scale, self.margin_bytes / scale
        stage = f"stage {self.need.stage}"
        if self.word == "fits":
            return f"fits on every stage, least room {room:.1f} {unit} ({stage}) +-{margin:.1f}"
        over = f"{-room:.1f} {unit} over" if room < 0 else f"{room:.1f} {unit} of room"
        at = f", at {self.need.instant}" if self.need.instant else ""
        if self.word == "does not fit":
            return f"does not fit: {stage}, {over} +-{margin:.1f}{at}"
        return f"may not fit: {stage}, {over} +-{margin:.1f}, fits with a chance of {self.chance:.0%}{at}"

    def as_object(self) -> dict[str, Any]:
        """For ``--json``: bytes, and the sentence."""
        return {
            "verdict": self.word, "text": str(self), "stage": self.need.stage,
            "needs_bytes": self.need.needs_bytes, "available_bytes": self.available_bytes,
            "room_bytes": self.room_bytes, "margin_bytes": self.margin_bytes, "chance": self.chance,
            "instant": self.need.instant, "margin_source": self.source,
        }  # fmt: skip


def verdict(needs: Sequence[StageNeed], available_bytes: int, misses: MemoryMisses) -> MemoryVerdict:
    """Whether stages that need so much fit GPUs that have ``available_bytes`` each."""
    worst = max(needs, key=lambda one: one.needs_bytes)
    ratio = available_bytes / worst.needs_bytes if worst.needs_bytes else _MUCH
    margin = round(misses.half_width * worst.needs_bytes)
    return MemoryVerdict(worst, available_bytes, misses.below(ratio), margin, misses.source)
