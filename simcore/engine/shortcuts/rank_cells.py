"""Cells of one rank: how they go where nothing is in the way, and what is booked of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from simcore.engine.shortcuts.bookings import UNTOLD, Bookings
from simcore.engine.shortcuts.cell_times import OwnCalls

if TYPE_CHECKING:
    from simcore.engine.items import Call
    from simcore.engine.rank import Rank
    from simcore.engine.shortcuts.apart import Share
    from simcore.engine.shortcuts.cell_times import Course
    from simcore.engine.shortcuts.cells import Cell, Cells, Chain, Pattern
    from simcore.engine.shortcuts.chain_times import ChainTimes
    from simcore.engine.shortcuts.shared import Shared
    from simcore.graph.ops import IntArray
    from simcore.network.link import Link


class RankCells:
    """Cells of one rank.

    ``calls`` are those of its local streams, ``local`` all in which it meets its company (``ranks``) only,
    ``alone`` those in which it meets nobody.
    ``by_itself``: item of the main stream from which a cell is played event by event, -1: none.
    """

    def __init__(
        self,
        shared: Shared,
        rank: Rank,
        cells: Cells,
        calls: Sequence[Call],
        local: frozenset[Call],
        alone: Collection[Call],
        ranks: Sequence[int],
    ) -> None:
        self.rank = rank
        self.streams = cells.streams
        self.cells = cells
        self.by_itself = -1
        self._stops: tuple[Cells, list[int], int] = cells, [], -1
        self.own = OwnCalls(shared.book, rank, ranks)
        self.shared = shared
        self.company = shared.company(rank, ranks)
        self._is_first = ranks[0] == rank.number
        self.local = local
        self._alone = alone
        self._bookings = Bookings()
        self._used: dict[Pattern | Cell, tuple[tuple[int, ...], tuple[Link, ...]]] = {}
        self._known: dict[tuple[Pattern, Share], tuple[ChainTimes, tuple[Link, ...]]] = {}
        shared.booked.append(self._bookings)
        own = rank.communicators.ports(rank.number)
        for call in calls:
            for link, _, _ in shared.network.route(rank.bound(call)[1]).uses:
                if link.index in own:
                    link.observer = rank.gpu  # what happens on them it has to know

    def ahead(self, chain: Chain, cell: int, share: Share) -> tuple[ChainTimes, int] | None:
        """Times of a chain in a share of the GPU, and the cell before which it stops: it begins ``cell`` now.

        None where something is in the way.
        """
        rank, pattern = self.rank, chain.pattern
        known = self._known.get((pattern, share))
        if known is None:
            times = self.shared.times(self.own, pattern, share)
            known = self._known[pattern, share] = times, self._plans_and_links(pattern)[1]
        times, links = known
        stop, now = times.usable[cell], rank.gpu.clock.now
        base = rank.host_base[chain.segment]
        if base + chain.all_launched_ps > now:  # the host is not far ahead
            begin = now - times.begin_ps[cell]
            for number in range(cell, stop):
                launched = base + chain.launched_ps[number]
                if launched > now and launched > begin + times.begin_ps[number]:
                    late = self._late(chain, cell, share, times, base - now)
                    times, stop = (late, late.usable[cell]) if late is not None else (times, number)
                    break
        if rank.at_stop is not None:
            last = self._last_place() - chain.place
            if last < stop:
                stop = last
        if stop <= cell:
            return None
        for link in links:
            if link.flows:
                stop = self.before(chain, link, cell, stop)
        return (times, stop) if stop > cell else None

    def _late(
        self, chain: Chain, cell: int, share: Share, undelayed: ChainTimes, base_ps: int
    ) -> ChainTimes | None:
        """Times of a chain that launches hold up.  Companions may have them at other times."""
        if not self.company.is_one:
            return None
        return self.shared.late.times(self.own, self.cells, chain, cell, share, undelayed, base_ps)

    def before(self, chain: Chain, link: Link, cell: int, stop: int) -> int:
        """The first of cells ``cell`` to ``stop`` that uses a link, else ``stop``."""
        for number in range(cell, stop):
            if link in self._plans_and_links(chain.pattern.cells[number])[1]:
                return number
        return stop

    def _last_place(self) -> int:
        """The last place that is not behind the rank's stops."""
        cells, stops, _ = known = self._stops
        if cells is not self.cells or stops is not self.rank.stops:
            cells, stops = self.cells, self.rank.stops
            width, last = len(cells.streams), len(cells.places)
            for number, stream in enumerate(cells.streams):
                places = range(number, len(cells.places), width)
                last = min(last, bisect_right(places, stops[stream], key=cells.places.__getitem__) - 1)
            self._stops = known = cells, stops, last
        return known[2]

    def begun(self) -> tuple[IntArray, IntArray]:
        """Items of the main stream at which something that is booked began, and when, ps."""
        return self._bookings.begun(self.cells)

    def book(self, chain: Chain, times: ChainTimes, first: int, stop: int, begin_ps: int) -> None:
        """Cells ``first`` to ``stop`` of a chain that began at ``begin_ps`` are over."""
        pattern = chain.pattern
        plans, _ = self._used.get(pattern) or self._plans_and_links(pattern)
        self._bookings.add(times, first, stop, plans, chain.place + first, begin_ps, self.shared.num_booked)
        self.shared.num_booked += 1

    def book_course(self, chain: Chain, cell: int, course: Course, begin_ps: int) -> None:
        """One cell of a chain is over that had a course of its own from ``begin_ps`` on."""
        pattern = chain.pattern
        plans = self._plans_and_links(pattern)[0][pattern.first_call[cell] : pattern.first_call[cell + 1]]
        times = self.shared.times_of(course)
        self._bookings.add(times, 0, 1, plans, chain.place + cell, begin_ps, self.shared.num_booked)
        self.shared.num_booked += 1

    @property
    def outcome(self) -> object:
        """See :class:`simcore.engine.rank.Player`."""
        return self.cells, self._bookings.outcome

    def record(self) -> int:
        """See :class:`simcore.engine.rank.Player`."""
        return self._bookings.record(self.rank, self.cells)

    def _plans_and_links(self, part: Pattern | Cell) -> tuple[tuple[int, ...], tuple[Link, ...]]:
        """Numbers in the network's log of the plans of a pattern's or a cell's calls (:data:`UNTOLD`: others
        note what it moves), and the links that they use.
        """
        found = self._used.get(part)
        if found is None:
            routes = {call: self.shared.network.route(self.rank.bound(call)[1]) for call in part.distinct}
            links = dict.fromkeys(link for route in routes.values() for link, _, _ in route.uses)
            # What moves is told by one of those who meet.
            number = {
                call: route.number if self._is_first or call in self._alone else UNTOLD
                for call, route in routes.items()
            }
            numbers = [number[call] for call in part.calls]
            found = self._used[part] = tuple(numbers), tuple(links)
        return found
