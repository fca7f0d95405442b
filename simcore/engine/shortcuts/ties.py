"""What classes of ranks have to do with each other: where their calls meet, and the links that they load."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from simcore.records import dataclass

if TYPE_CHECKING:
    from simcore.collectives.plan import CollectivePlan
    from simcore.engine.rank import Rank
    from simcore.graph.ops import IntArray
    from simcore.network.fluid import FluidNetwork


@dataclass(frozen=True, eq=False, slots=True)
class Tie:
    """A call of a class: ``rows`` of the op table, the ``plan`` that carries it out, the number of the
    ``place`` where its members meet, and the links on which it may be held up or hold up others.
    """

    rows: IntArray
    plan: CollectivePlan
    place: int
    links: tuple[int, ...]


def ties_of(ranks: Sequence[Rank], network: FluidNetwork | None) -> tuple[tuple[Tie, ...], ...]:
    """The ties of each of ``ranks``; without a network nobody shares links."""
    places: dict[object, int] = {}
    found = []
    for rank in ranks:
        ties = []
        for call in rank.calls:
            communicator, plan = rank.bound(call)
            links = () if network is None else network.route(plan).uses
            place = places.setdefault(communicator, len(places))
            ties.append(Tie(call.rows, plan, place, tuple([link.index for link, _, _ in links])))
        found.append(tuple(ties))
    return tuple(found)


@dataclass(frozen=True, eq=False, slots=True)
class Parts:
    """Classes that have nothing to do with each other for a while.

    ``of_class[c]`` is the part of class ``c``; ``joining[c]`` are its ties that bring parts together later.
    """

    of_class: IntArray
    joining: tuple[tuple[Tie, ...], ...]

    def of_plans(self, ties: Sequence[Sequence[Tie]]) -> dict[CollectivePlan, int]:
        """The part in which each plan of ``ties`` is carried out, -1 for those that join parts."""
        found: dict[CollectivePlan, int] = {}
        for part, of_class, joining in zip(self.of_class.tolist(), ties, self.joining, strict=True):
            found.update((tie.plan, part) for tie in of_class)
            found.update((tie.plan, -1) for tie in joining)
        return found


def parts_of(ties: Sequence[Sequence[Tie]], counts: Callable[[int, Tie], bool]) -> Parts:
    """Parts between which there are no ties that count (``counts(class, tie)``); others may join them."""
    now = [[tie for tie in of_class if counts(c, tie)] for c, of_class in enumerate(ties)]
    part, owner = _connected(now)
    meeting: dict[int, set[int]] = defaultdict(set)
    loading: dict[int, set[int]] = defaultdict(set)
    for c, of_class in enumerate(ties):
        for tie in of_class:
            meeting[tie.place].add(part[c])
            for link in tie.links:
                loading[link].add(part[c] if link not in owner else owner[link])

    def joins(tie: Tie, own: int) -> bool:
        known: Iterable[int] = meeting[tie.place].union(*(loading[link] for link in tie.links))
        return any(other != own for other in known)

    joining = tuple(tuple(tie for tie in of_class if joins(tie, part[c])) for c, of_class in enumerate(ties))
    return Parts(np.array(part, dtype=np.int64), joining)


def _connected(ties: Sequence[Sequence[Tie]]) -> tuple[list[int], dict[int, int]]:
    """The part of each class, and that of each link."""
    parent = list(range(len(ties)))

    def root(c: int) -> int:
        while parent[c] != c:
            parent[c] = parent[parent[c]]
            c = parent[c]
        return c

    first: dict[tuple[str, int], int] = {}
    for c, of_class in enumerate(ties):
        for tie in of_class:
            for what in (("place", tie.place), *(("link", link) for link in tie.links)):
                other = first.setdefault(what, c)
                parent[root(c)] = root(other)
    part = [root(c) for c in range(len(ties))]
    return part, {number: part[c] for (kind, number), c in first.items() if kind == "link"}
