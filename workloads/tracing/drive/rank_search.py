"""Which ranks of a world to run: places along the axes of its process groups, then by what they recorded.

Note [Distinct ranks]
    A rank's place is its index in its group of each family, told apart only as first, inner and last:
    programs treat the ends of an axis specially, and uneven shards end at the last rank.  Along an axis
    with point-to-point traffic (pipeline stages) every index counts.

    The world's first and last rank are run, and their recordings hashed.  Where they agree, and with more
    than one axis a rank inside all of them agrees, too, every rank is taken to do the same.  Of pipeline
    stages the first rank of each is run, of the last stage the last one, too, and of the first stage one
    inside: where they agree, every stage is alike in itself.  Otherwise one
    rank of each kind of place is run; of a kind with many ranks the last one, too, unless the next rank
    above does what the first of them does, and the border between two that differ is searched by halving.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from simcore.graph.groups import ProcessGroup

Place = tuple[int | str, ...]


def axes(families: Mapping[str, ProcessGroup], world_size: int) -> tuple[ProcessGroup, ...]:
    """Families that say where a rank is: those of which every rank has a group, the world only when no other
    does.
    """
    whole = [
        family
        for name, family in families.items()
        if name != "world" and 1 < family.size < world_size and all(map(family.contains, range(world_size)))
    ]
    return tuple(whole) or tuple(family for name, family in families.items() if name == "world")


class RankPlaces:
    """Ranks of a world by their place along ``families``; along those in ``pipelined`` every index counts.

    ``kinds``: ranks by kind of place, in order of their lowest rank; ``stages``: ranks of each pipeline
    stage; ``numbers``: the stage of each rank.
    """

    def __init__(self, families: Sequence[ProcessGroup], pipelined: set[str], world_size: int) -> None:
        self.kinds: dict[Place, list[int]] = {}
        stages: dict[tuple[int, ...], list[int]] = {}
        for rank in range(world_size):
            indices = [(family, family.index_of(rank)) for family in families]
            place = tuple(_kind(i, family.size, family.name in pipelined) for family, i in indices)
            self.kinds.setdefault(place, []).append(rank)
            stage = tuple(i for family, i in indices if family.name in pipelined)
            stages.setdefault(stage, []).append(rank)
        self.stages = [stages[key] for key in sorted(stages)]
        self.numbers = {rank: number for number, ranks in enumerate(self.stages) for rank in ranks}


def _kind(index: int, size: int, every: bool) -> int | str:
    if every:
        return index
    if index == 0:
        return "first"
    return "last" if index == size - 1 else "inner"


def _innermost(kinds: Mapping[Place, Sequence[int]], among: Sequence[int]) -> int:
    """A rank of ``among`` that stands inside of as many axes as possible."""
    chosen = set(among)
    inside = [(place.count("inner"), -ranks[0]) for place, ranks in kinds.items() if ranks[0] in chosen]
    return -max(inside)[1]


class RankSearch:
    """Finds out which ranks record alike, running no more than ``max_ranks`` of them.

    ``run`` records ranks and returns the hash of each.  ``assumed`` counts ranks that stand in for others
    although their neighbours were seen to differ, because ``max_ranks`` was reached.
    """

    def __init__(self, run: Callable[[Sequence[int]], Mapping[int, str]], max_ranks: int) -> None:
        self.hashes: dict[int, str] = {}
        self.assumed = 0
        self._run_ranks = run
        self._max_ranks = max_ranks

    def ends(self, world_size: int) -> None:
        """Run the first and the last rank of the world."""
        self._run(sorted({0, world_size - 1}))

    def classes(
        self, kinds: Mapping[Place, Sequence[int]], stages: Sequence[Sequence[int]], num_axes: int
    ) -> dict[int, str]:
        """Hash of every rank's recording, its own or that of the rank that stands for it."""
        everyone = [rank for ranks in kinds.values() for rank in ranks]
        if len(set(self.hashes.values())) == 1:
            if num_axes > 1:
                self._run([_innermost(kinds, everyone)])
            if len(set(self.hashes.values())) == 1:
                return dict.fromkeys(everyone, self.hashes[min(self.hashes)])
        alike = self._stages_alike(kinds, stages, num_axes) if len(stages) > 1 else None
        if alike is not None:
            return alike
        self._run([ranks[0] for ranks in kinds.values()])
        self._run([ranks[-1] for ranks in kinds.values() if self._may_change(ranks)])
        found: dict[int, str] = {}
        for ranks in kinds.values():
            self._fill(ranks, found)
        return found

    def _stages_alike(
        self, kinds: Mapping[Place, Sequence[int]], stages: Sequence[Sequence[int]], num_axes: int
    ) -> dict[int, str] | None:
        """A rank inside the first stage and the end of the last speak for all stages, if they agree with the
        first ranks of these; None when they do not.
        """
        self._run([ranks[0] for ranks in stages])
        self._run([_innermost(kinds, stages[0]) if num_axes > 2 else stages[0][-1], stages[-1][-1]])
        found: dict[int, str] = {}
        for ranks in stages:
            known = {self.hashes[rank] for rank in ranks if rank in self.hashes}
            if len(known) != 1:
                return None
            found.update(dict.fromkeys(ranks, known.pop()))
        return found

    def _may_change(self, ranks: Sequence[int]) -> bool:
        """Whether the rank run next above ``ranks`` recorded something else than the first of them."""
        first = self.hashes.get(ranks[0])
        above = min((rank for rank in self.hashes if rank > ranks[-1]), default=ranks[0])
        return len(ranks) > 1 and first is not None and self.hashes[above] != first

    def _run(self, ranks: Sequence[int]) -> None:
        room = max(0, self._max_ranks - len(self.hashes))
        new = [rank for rank in ranks if rank not in self.hashes]
        if new[:room]:
            self.hashes.update(self._run_ranks(new[:room]))

    def _fill(self, ranks: Sequence[int], found: dict[int, str]) -> None:
        """Hashes of ``ranks``, which are in order, by halving between those that differ."""
        known = [position for position, rank in enumerate(ranks) if rank in self.hashes]
        if not known:  # no room to run any: the nearest rank below that was run
            nearest = max((rank for rank in self.hashes if rank <= ranks[0]), default=min(self.hashes))
            self.assumed += len(ranks)
            found.update(dict.fromkeys(ranks, self.hashes[nearest]))
            return
        if known[-1] < len(ranks) - 1 and self._may_change(ranks):
            self.assumed += len(ranks) - 1 - known[-1]
        found.update(dict.fromkeys(ranks[: known[0] + 1], self.hashes[ranks[known[0]]]))
        found.update(dict.fromkeys(ranks[known[-1] :], self.hashes[ranks[known[-1]]]))
        for low, high in pairwise(known):
            self._between(ranks, low, high, found)

    def _between(self, ranks: Sequence[int], low: int, high: int, found: dict[int, str]) -> None:
        left, right = self.hashes[ranks[low]], self.hashes[ranks[high]]
        if left == right:
            found.update(dict.fromkeys(ranks[low : high + 1], left))
            return
        found[ranks[low]], found[ranks[high]] = left, right
        if high - low < 2:
            return
        middle = (low + high) // 2
        self._run([ranks[middle]])
        if ranks[middle] not in self.hashes:
            self.assumed += high - low - 1
            found.update(dict.fromkeys(ranks[low + 1 : high], left))
            return
        self._between(ranks, low, middle, found)
        self._between(ranks, middle, high, found)
