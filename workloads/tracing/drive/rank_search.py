"""Which ranks of a world to run: places along its axes, told apart by what ranks at them recorded.

Note [Distinct ranks]
    Process groups cut a world into axes: a rank's number in mixed radix is its place on each of them.
    Programs treat the ends of an axis specially, and uneven shards end at the last rank.

    The world's first and last rank are run, and those that the script's code compares ranks with, and their
    recordings hashed.  Where they agree, and with more than one axis or flat shards a rank inside of all axes
    agrees, too, every rank is taken to do the same.  Otherwise, on each axis through the first rank, the
    second and the last place are run; where these two differ, borders between them are searched from the last
    place down, in steps that double, and then by halving.  This holds for rows that are dealt out: no place
    holds more than the first.  Where one does, of any tensor, or where ranks gather parameters of which each
    has updated a part, shards are cut across tensors, and places may be alike by chance: all of them are run,
    or as many, evenly spread, as half of the ranks that may be run.  Where the program tells how tensors are
    cut (FSDP1), places with pieces of equal sizes are one kind, of which the first and the last are run, and
    where these differ all.  Of an axis of pipeline stages every place is run.  Places of an axis that
    recorded alike are one kind, and of each combination of kinds one rank is run, and the corners of the
    world (up to :data:`MOST_CORNERS`), which must do what their combination does.

    What ranks read is not their place's: where loaders' samplers tell it (Note [Batches of other ranks]),
    a rank is spoken for by one whose batches have the same shapes, or run.

    That a combination speaks for all of its ranks is proven by what they must agree on: members of a group
    issue the same collectives, and sends meet receives.  Where they do not, the ranks concerned are run
    themselves, and a place that turns out to be another kind is told apart from then on.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from workloads.tracing.record.world_axes import WorldAxis

#: Bytes of each storage that lasts, by category.
Held = Mapping[str, Sequence[int]]

#: Of a world of more axes, only the last corner is run.
MOST_CORNERS = 16


class RankSearch:
    """Finds out which ranks record alike, running no more than ``max_ranks`` of them.

    ``run`` records ranks and returns the hash of each, ``held`` tells the bytes of what one of these holds,
    ``pieces`` of tensors what the place of an axis of so many places has, () where that is not known,
    ``batches`` what shapes a rank reads, None where that is not known.
    ``assumed`` counts ranks that stand in for others although their neighbours were seen to differ, because
    ``max_ranks`` was reached.
    """

    def __init__(
        self,
        run: Callable[[Sequence[int]], Mapping[int, str]],
        max_ranks: int,
        held: Callable[[int], Held] = lambda _: {},
        pieces: Callable[[int, int], tuple[tuple[int, ...], ...]] = lambda _size, _place: (),
        batches: Callable[[int], str | None] = lambda _: None,
    ) -> None:
        self.hashes: dict[int, str] = {}
        self.assumed = 0
        self._run_ranks = run
        self._held, self._pieces, self._batches = held, pieces, batches
        self._max_ranks = max_ranks
        self._axes: tuple[WorldAxis, ...] = ()
        self._cut = False
        self._kinds: list[list[int]] = []  # by axis and place: the lowest place of its kind
        self._unsure: set[tuple[WorldAxis, int]] = set()

    def ends(self, world_size: int) -> None:
        """Run the first and the last rank of the world."""
        self._run([0, world_size - 1])

    def named(self, ranks: Sequence[int]) -> None:
        """Run the ``ranks`` that the program names: no place along an axis shows what they do."""
        self._run(ranks)

    def classes(
        self, axes: Sequence[WorldAxis], *, flat_shards: bool = False, cut: bool = False
    ) -> dict[int, str]:
        """Hash of every rank's recording, its own or that of the rank that stands for it; ``flat_shards``:
        ranks hold shards that may be cut across tensors; ``cut``: they are, of equal sizes.
        """
        self._axes, self._cut = tuple(axes), cut or any(len(self._by_pieces(axis)) > 1 for axis in axes)
        if self._all_alike() and not self._cut:
            if len(axes) > 1 or flat_shards:
                self._run([self._inside])
            if self._all_alike():
                self._kinds = [[0] * axis.size for axis in axes]
                return self._stand_ins()
        self._run([place * axis.stride for axis in axes if axis.stages for place in range(axis.size)])
        self._run([place * axis.stride for axis in axes if axis.size > 1 for place in (1, axis.size - 1)])
        self._run(_corners(axes))
        self._kinds = [self._kinds_along(axis) for axis in axes]
        return self._stand_ins()

    def settle(self, ranks: Iterable[int]) -> dict[int, str] | None:
        """As :meth:`classes`, when some of ``ranks`` do not do what was thought: these are run now.  None
        when all of them have been run, or no more may be.
        """
        before = len(self.hashes)
        self._run(list(ranks))
        return self._stand_ins() if len(self.hashes) > before else None

    def forget(self, ranks: Iterable[int]) -> None:
        """Record ``ranks`` anew when they are asked for."""
        for rank in ranks:
            self.hashes.pop(rank, None)

    def _all_alike(self) -> bool:
        return len(set(self.hashes.values())) == 1

    def _run(self, ranks: Sequence[int]) -> None:
        room = max(0, self._max_ranks - len(self.hashes))
        new = [rank for rank in dict.fromkeys(ranks) if rank not in self.hashes]
        if new[:room]:
            self.hashes.update(self._run_ranks(new[:room]))

    def _kinds_along(self, axis: WorldAxis) -> list[int]:
        if axis.stages or axis.size < 3:
            alike = not axis.stages and self._hash_at(axis, axis.size - 1) == self.hashes[0]
            return [0] * axis.size if alike else list(range(axis.size))
        found = {0: self.hashes[0], axis.size - 1: self._hash_at(axis, axis.size - 1)}
        found[1] = self._hash_at(axis, 1)
        cut = self._by_pieces(axis)
        if len(cut) > 1:
            self._run([place * axis.stride for places in cut for place in (places[0], places[-1])])
            for places in cut:
                self._within(axis, places, found)
        elif self._cut_across_tensors(axis):
            step = -(-axis.size // max(1, self._max_ranks // 2))
            self._run([place * axis.stride for place in range(0, axis.size, step)])
            found = {place: self._hash_at(axis, place) for place in range(axis.size)}
        else:
            self._between(axis, 1, axis.size - 1, found, from_top=1)
        lowest: dict[str, int] = {}
        return [lowest.setdefault(found[place], place) for place in range(axis.size)]

    def _by_pieces(self, axis: WorldAxis) -> list[list[int]]:
        """Places that have pieces of tensors of the same sizes."""
        found: dict[tuple[tuple[int, ...], ...], list[int]] = {}
        for place in range(axis.size):
            found.setdefault(self._pieces(axis.size, place), []).append(place)
        return list(found.values())

    def _within(self, axis: WorldAxis, places: Sequence[int], found: dict[int, str]) -> None:
        """Hashes of ``places``, that of the first where the last does the same."""
        first, last = places[0], places[-1]
        if self._hash_at(axis, first) == self._hash_at(axis, last):
            found.update(dict.fromkeys(places, self._hash_at(axis, first)))
            self._unsure |= {(axis, place) for place in places if (axis, first) in self._unsure}
        else:
            self._run([place * axis.stride for place in places])
            found.update({place: self._hash_at(axis, place) for place in places})

    def _cut_across_tensors(self, axis: WorldAxis) -> bool:
        if self._cut:
            return True
        first, others = self._held(0), [axis.stride, (axis.size - 1) * axis.stride]
        if not any(one.stages for one in self._axes):
            others.append(self._inside)
        return any(_holds_more(self._held(rank), first) for rank in others if rank in self.hashes)

    @property
    def _inside(self) -> int:
        """A rank in the middle of all axes."""
        return sum(axis.size // 2 * axis.stride for axis in self._axes)

    def _hash_at(self, axis: WorldAxis, place: int) -> str:
        """What the rank at ``place`` recorded; where there was no room for it, the nearest below it."""
        if place * axis.stride not in self.hashes:
            self._unsure.add((axis, place))
        while place * axis.stride not in self.hashes:
            place -= 1
        return self.hashes[place * axis.stride]

    def _between(
        self, axis: WorldAxis, low: int, high: int, found: dict[int, str], from_top: int | None = None
    ) -> None:
        """Hashes of the places between two, where these differ by halving, but at first no further than
        ``from_top`` below the upper one: uneven shards end there.
        """
        if found[low] == found[high]:
            found.update(dict.fromkeys(range(low + 1, high), found[low]))
        elif high - low > 1:
            middle = (low + high) // 2 if from_top is None else max((low + high) // 2, high - from_top)
            self._run([middle * axis.stride])
            found[middle] = self._hash_at(axis, middle)
            if (axis, middle) in self._unsure:
                self._unsure |= {(axis, place) for place in range(low + 1, high)}
                found.update(dict.fromkeys(range(low + 1, high), found[middle]))
                return
            more = None if from_top is None else 2 * from_top if found[middle] == found[high] else 1
            self._between(axis, low, middle, found, more)
            self._between(axis, middle, high, found)

    def _stand_in(self, rank: int) -> int:
        return sum(
            kinds[axis.place(rank)] * axis.stride for axis, kinds in zip(self._axes, self._kinds, strict=True)
        )

    def _stand_ins(self) -> dict[int, str]:
        """Run one rank of each combination of kinds; where a rank that was run is of another kind than its
        places said, tell these places apart and go on.
        """
        while True:
            self._run_combinations()
            wrong = [rank for rank in sorted(self.hashes) if self._speaks_wrongly(rank)]
            if not wrong:
                known = len(self.hashes)
                self._run_other_readers()
                if len(self.hashes) == known:
                    return self._hashes_of_all()
                continue
            for axis, kinds in zip(self._axes, self._kinds, strict=True):
                kinds[axis.place(wrong[0])] = axis.place(wrong[0])

    def _run_other_readers(self) -> None:
        """One rank of each kind of batches that nobody of its place reads."""
        first: dict[tuple[int, str | None], int] = {}
        for rank in range(math.prod(axis.size for axis in self._axes)):
            if rank not in self.hashes and self._speaker(rank) == rank != self._stand_in(rank):
                first.setdefault((self._stand_in(rank), self._batches(rank)), rank)
        self._run(list(first.values()))

    def _speaker(self, rank: int) -> int:
        """The rank at the first place of its kind, where that reads batches of the same shapes; else one that
        does and differs in its batches alone; else the rank itself.
        """
        speaks, read = self._stand_in(rank), self._batches(rank)
        if speaks not in self.hashes or read is None or self._batches(speaks) == read:
            return speaks
        alike = (one for one in self.hashes if self._batches(one) == read and self._differ_by_data(one, rank))
        return next(alike, rank)

    def _differ_by_data(self, run: int, rank: int) -> bool:
        """Whether a rank that was run, and reads the same as ``rank``, holds what the stand-in of ``rank``
        does, and is of its kind along every axis on which that one's batches do not change.
        """
        speaks = self._stand_in(rank)
        if self._held(run) != self._held(speaks):
            return False
        for axis, kinds in zip(self._axes, self._kinds, strict=True):
            if kinds[axis.place(run)] != kinds[axis.place(rank)]:
                beside = speaks + (axis.place(run) - axis.place(speaks)) * axis.stride
                if axis.stages or self._batches(beside) == self._batches(speaks):
                    return False
        return True

    def _speaks_wrongly(self, rank: int) -> bool:
        return self.hashes.get(self._stand_in(rank), self.hashes[rank]) != self.hashes[rank]

    def _run_combinations(self) -> None:
        """Those with most ranks first."""
        counts = [Counter(kinds) for kinds in self._kinds]
        combined = []
        for places in itertools.product(*counts):
            stands_for = math.prod(count[place] for count, place in zip(counts, places, strict=True))
            rank = sum(place * axis.stride for axis, place in zip(self._axes, places, strict=True))
            combined.append((-stands_for, rank))
        self._run([rank for _, rank in sorted(combined)])

    def _hashes_of_all(self) -> dict[int, str]:
        found: dict[int, str] = {}
        self.assumed = 0
        world_size = math.prod(axis.size for axis in self._axes)
        for rank in range(world_size):
            speaks = rank if rank in self.hashes else self._speaker(rank)
            unsure = speaks != rank and any((axis, axis.place(rank)) in self._unsure for axis in self._axes)
            self.assumed += unsure or speaks not in self.hashes
            found[rank] = self.hashes[speaks if speaks in self.hashes else self._nearest(speaks)]
        return found

    def _nearest(self, rank: int) -> int:
        """Of the ranks that were run, one of its stage if there is any, at as many equal places as can be."""

        def alike(other: int) -> tuple[int, int, int]:
            equal = [axis.place(other) == axis.place(rank) for axis in self._axes]
            stage = sum(same and axis.stages for same, axis in zip(equal, self._axes, strict=True))
            return stage, sum(equal), -abs(other - rank)

        return max(self.hashes, key=alike)


def _holds_more(held: Held, first: Held) -> bool:
    """Whether anything in ``held`` is larger than what is as large among all in ``first``."""
    for category, sizes in held.items():
        most = sorted(first.get(category, ()), reverse=True)
        mine = sorted(sizes, reverse=True)
        if len(mine) > len(most) or any(one > other for one, other in zip(mine, most, strict=False)):
            return True
    return False


def _corners(axes: Sequence[WorldAxis]) -> list[int]:
    long = [axis for axis in axes if axis.size > 1]
    if 2 ** len(long) > MOST_CORNERS:
        return []
    ends = [(0, (axis.size - 1) * axis.stride) for axis in long]
    return sorted(map(sum, itertools.product(*ends)))
