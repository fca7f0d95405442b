"""What ranks read that are not run, as far as rank 0 could draw it (Note [Batches of other ranks])."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, combinations
from typing import Any

from simcore.graph.layout import contiguous_text
from workloads.tracing.fake.given_batches import LoaderShare
from workloads.tracing.record.assemble import RankTrace
from workloads.tracing.record.tokens import copied_from_host, microbatches_of
from workloads.tracing.record.world_axes import WorldAxis


class OthersBatches:
    """Knows the shapes of what ranks read, from those that were run (``seen``, which grows)."""

    def __init__(self, seen: Mapping[int, RankTrace], axes: Sequence[WorldAxis], world_size: int) -> None:
        self._seen, self._axes, self._world_size = seen, axes, world_size
        self._known: tuple[str | None, ...] = ()
        self._known_for = 0

    def of(self, rank: int) -> str | None:
        """Shapes of the batches of ``rank``; None: not known."""
        if self._known_for != len(self._seen):
            self._known_for = len(self._seen)
            self._known = self._learn()
        return self._known[rank]

    def differ_otherwise(self) -> bool:
        """Whether ranks of a stage that were run read other shapes than each other, of tensors of a type and
        as many dimensions, or look up texts of other lengths in turn, and their samplers do not say so.
        """
        read: dict[tuple[Any, ...], set[frozenset[Any]]] = {}
        for rank, trace in self._seen.items():
            known, looked_up = self.of(rank), microbatches_of(trace)
            stage = tuple(axis.place(rank) for axis in self._axes if axis.stages)
            for kind, shapes in copied_from_host(trace).items():
                read.setdefault((known, stage, kind), set()).add(shapes)
            for each in [looked_up] if known is not None else [[one] for one in looked_up]:
                read.setdefault((known, stage, "looked up"), set()).add(frozenset(each))
        return any(len(one - {frozenset()}) > 1 for one in read.values())

    def said_of_others(self) -> str:
        """Which ranks were not run, and why their batches are thought to be those of their class."""
        others = [rank for rank in range(self._world_size) if rank not in self._seen]
        if not others:
            return ""
        which = f"ranks not run: {contiguous_text(others)}"
        if all(self.of(rank) is not None for rank in others):
            return f"{which}; their batches, drawn as their samplers would, have the shapes of their class"
        if any(trace.read != () or copied_from_host(trace) for trace in self._seen.values()):
            return f"{which}; that their batches have the shapes of their class is taken for granted"
        return f"{which}; they read nothing of the host, and sizes are taken to be those of their class"

    def _learn(self) -> tuple[str | None, ...]:
        first = self._seen[0].read
        nothing = (None,) * self._world_size
        if not first:
            return nothing
        placings = [list(self._placings(number, share)) for number, share in enumerate(first)]
        if not all(placings):
            return nothing
        return tuple(self._shapes(rank, first, placings) for rank in range(self._world_size))

    def _shapes(
        self, rank: int, first: Sequence[LoaderShare], placings: Sequence[Sequence[Sequence[WorldAxis]]]
    ) -> str | None:
        said = []
        for share, possible in zip(first, placings, strict=True):
            places = {_place(rank, axes) for axes in possible}
            drawn = share.drawn.get(places.pop())
            if places or drawn is None:
                return None
            said.append(drawn.shapes)
        return " | ".join(said)

    def _placings(self, number: int, share: LoaderShare) -> Iterator[tuple[WorldAxis, ...]]:
        """Axes whose places may tell whose share of loader ``number`` is whose, by those that ranks had."""
        axes = [axis for axis in self._axes if axis.size > 1]
        for chosen in chain.from_iterable(combinations(axes, count) for count in range(1, len(axes) + 1)):
            if math.prod(axis.size for axis in chosen) == share.among and all(
                _had(trace, number, share, _place(rank, chosen)) for rank, trace in self._seen.items()
            ):
                yield chosen


def _had(trace: RankTrace, number: int, share: LoaderShare, place: int) -> bool:
    """Whether a rank that was run really had what was drawn for ``place``."""
    own = trace.read[number] if trace.read and number < len(trace.read) else None
    return own is not None and own.place == place and own.own == share.drawn.get(place)


def _place(rank: int, axes: Sequence[WorldAxis]) -> int:
    """Number of a share whose axes, innermost first, are ``axes``."""
    place, size = 0, 1
    for axis in axes:
        place += axis.place(rank) * size
        size *= axis.size
    return place
