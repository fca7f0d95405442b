"""A rank's cells as one event: when a span may begin, what others change meanwhile, what is booked of it.

Note [Sleeping on]
    While a span is under way its rank's streams sleep.  What others do to the GPU changes the course of the
    cell that is under way (Note [Courses]): it ends at another time, and the next cells begin in another
    share of the GPU.

Note [Catching up]
    When others use the links of the span, or when a change has no course, the cell that is under way is
    played from its start, event by event, up to now, with all changes since then
    (:meth:`simcore.clock.Clock.catching_up`): its events concern nobody else.  From there on the rank goes on
    as if it had never slept.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

from simcore.clock import Movable
from simcore.engine.gpu import DRAWN, ENDED, GIVEN_BACK, RERATED, TAKEN
from simcore.engine.shortcuts.apart import Disturbance, DisturbedError, Playing, Share
from simcore.engine.shortcuts.bookings import UNTOLD, Bookings
from simcore.engine.shortcuts.cell_times import Course, OwnCalls
from simcore.engine.shortcuts.cells import Cells, Chain, Pattern
from simcore.engine.shortcuts.chain_times import ChainTimes, ends_well

if TYPE_CHECKING:
    from simcore.engine.items import Call
    from simcore.engine.rank import Rank
    from simcore.engine.shortcuts.shared import Shared
    from simcore.network.flow import Flow
    from simcore.network.link import Link

#: Ranks whose spans, after so many of them, have mostly been taken apart go without.
_TRIALS: Final = 50


class Solo:
    """Cells of one rank: who answers for stretches of its main stream.

    ``calls`` are those of its local streams, ``alone`` all in which it meets nobody, ``ranks`` its company.
    ``by_itself``: item of that stream from which a cell is played event by event, -1: none.
    """

    def __init__(
        self,
        shared: Shared,
        rank: Rank,
        cells: Cells,
        calls: Sequence[Call],
        alone: Collection[Call],
        ranks: Sequence[int],
    ) -> None:
        self.rank = rank
        self.streams = cells.streams
        self.cells = cells
        self.by_itself = -1
        self.own = OwnCalls(shared.book, rank, ranks)
        self.shared = shared
        self.company = shared.company(rank, ranks)
        self._is_first = ranks[0] == rank.number
        self._alone = alone
        self._bookings = Bookings()
        self._used: dict[Pattern, tuple[tuple[int, ...], tuple[Link, ...]]] = {}
        self._known: dict[tuple[Pattern, Share], tuple[ChainTimes, tuple[Link, ...]]] = {}
        shared.booked.append(self._bookings)
        own = rank.communicators.ports(rank.number)
        for call in calls:
            for link, _, _ in shared.network.route(rank.bound(call)[1]).uses:
                if link.index in own:
                    link.observer = rank.gpu  # what happens on them it has to know

    def play(self, item: int) -> Span | None:
        """The chain from an item of the stream on, where a cell begins, as one event, as far as nothing is in
        the way.
        """
        cells = self.cells
        number = cells.chain[item]
        if number < 0 or item == self.by_itself:
            return None
        company = self.company
        if company.begun >= _TRIALS and 2 * company.taken_apart > company.begun:
            return None
        share = self.rank.gpu.taken()
        if share is None:
            return None
        chain, cell = cells.chains[number], cells.cell[item]
        ahead = self.ahead(chain, cell, share)
        if ahead is None or chain.pattern.first_item[ahead[1]] - chain.pattern.first_item[cell] < 2:
            return None
        company.begun += 1
        return Span(self, chain, cell, share, *ahead)

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
                    stop = number
                    break
        if stop == cell:
            return None
        for link in links:
            if link.flows:
                return None
        return times, stop

    def book(self, chain: Chain, times: ChainTimes, first: int, stop: int, begin_ps: int) -> None:
        """Cells ``first`` to ``stop`` of a chain that began at ``begin_ps`` are over."""
        self._bookings.add(
            times, first, stop, self._plans_and_links(chain.pattern)[0], chain.place + first, begin_ps,
            self.shared.num_booked,
        )  # fmt: skip
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

    def _plans_and_links(self, pattern: Pattern) -> tuple[tuple[int, ...], tuple[Link, ...]]:
        """Numbers in the network's log of the plans of a pattern's calls (:data:`UNTOLD`: others note what it
        moves), and the links that they use.
        """
        found = self._used.get(pattern)
        if found is None:
            routes = {call: self.shared.network.route(self.rank.bound(call)[1]) for call in pattern.distinct}
            links = dict.fromkeys(link for route in routes.values() for link, _, _ in route.uses)
            # What moves is told by one of those who meet.
            number = {
                call: route.number if self._is_first or call in self._alone else UNTOLD
                for call, route in routes.items()
            }
            numbers = [number[call] for call in pattern.calls]
            found = self._used[pattern] = tuple(numbers), tuple(links)
        return found


class Span(Movable):
    """Cells of a chain on a rank's GPU, from ``cell`` on to ``stop``; fires when the main stream goes on.

    ``cell`` is the first one that is not booked, ``begin_ps`` when the chain would have begun.  Where a
    ``course`` is set, that cell is under way on it since ``since_ps``; where nobody knows how that ends, it
    is being played apart (``playing``), event by event, as time goes by.
    """

    def __init__(
        self, solo: Solo, chain: Chain, cell: int, share: Share, times: ChainTimes, stop: int
    ) -> None:
        super().__init__(solo.rank.gpu.clock)
        self._solo = solo
        self.gpu = solo.rank.gpu
        self.flows: list[Flow] = []
        self._chain = chain
        self._course: Course | None = None
        self._playing: Playing | None = None
        self.gpu.sleeper = self
        self._begin(cell, share, times, stop)

    def _begin(self, cell: int, share: Share, times: ChainTimes, stop: int) -> None:
        """Begin ``cell`` now."""
        self._cell, self._share, self._times, self._stop = cell, share, times, stop
        self._begin_ps = self.env.now - times.begin_ps[cell]
        self.set(self._begin_ps + times.begin_ps[stop])
        self._solo.company.acted()

    # -- the end of cells ------------------------------------------------------------------------

    def due(self) -> None:
        """All cells up to ``stop``, or the one on a course of its own, are over."""
        chain = self._chain
        if self._course is None:
            self._book(self._stop)
        else:
            if not self._is_over():
                return
            self._solo.book_course(chain, self._cell, self._course, self._since_ps)
            self._cell += 1
            self._course = self._playing = None
        if self._cell < len(chain.pattern.cells):
            share = self._now_taken()
            ahead = self._solo.ahead(chain, self._cell, share)
            if ahead is not None:
                self._begin(self._cell, share, *ahead)
                return
        self._go_on()

    def _is_over(self) -> bool:
        """Whether the cell on a course of its own ends now; where nobody knows, it is played up to now."""
        book, course = self._solo.shared.book, self._course
        assert course is not None
        if course.times is not None:  # somebody else may have found them meanwhile
            end_ps = self._since_ps + course.times.lasts_ps
            if end_ps > self.env.now:
                self.set(end_ps)
            return end_ps == self.env.now
        since_ps = self.env.now - self._since_ps
        try:
            if self._playing is None:
                self._playing = book.begin(self._solo.own, course)
            self._playing.play_before(since_ps + 1)
            if self._playing.is_over:
                book.end(self._playing, course)
            else:
                self.set(self._since_ps + self._playing.next_ps)
        except DisturbedError:
            course.is_disturbed = True
            self.touched()
            return False
        return course.times is not None

    def _now_taken(self) -> Share:
        return self.gpu.sms.held, tuple(self.gpu.draws.values())

    def _book(self, stop: int) -> None:
        """Cells before ``stop`` are over."""
        if stop > self._cell:
            self._solo.book(self._chain, self._times, self._cell, stop, self._begin_ps)
            self._cell = stop

    def _go_on(self) -> None:
        """The streams go on where the next cell begins."""
        solo, chain = self._solo, self._chain
        self.gpu.sleeper = None
        place, needed = solo.cells.at(chain.place + self._cell)
        solo.rank.pass_by(solo.cells.streams, place, needed)
        solo.by_itself = -1 if self._cell == len(chain.pattern.cells) else place[0]
        self.fire()

    # -- what others do --------------------------------------------------------------------------

    def change(
        self,
        kind: int,
        num_sms: int = 0,
        flow: Flow | None = None,
        bytes_per_ps: float = 0.0,
        desired_bytes_per_ps: float = 0.0,
    ) -> None:
        """See :class:`simcore.engine.gpu.Sleeper`."""
        now, gpu = self.env.now, self.gpu
        if now >= self.due_ps and self._knows():  # cells are over, though their event has not come yet
            self.finish()
            if gpu.sleeper is not self:
                if gpu.sleeper is not None:
                    gpu.sleeper.change(kind, num_sms, flow, bytes_per_ps, desired_bytes_per_ps)
                return
        if self._course is None and self._under_way() == now:
            if kind != ENDED:  # what that frees comes next
                self._begin_anew(kind, num_sms, flow, (bytes_per_ps, desired_bytes_per_ps))
            return
        if self._course is None:
            cell = self._chain.pattern.cells[self._cell]
            self._course = self._solo.shared.book.course(self._solo.own, cell, self._share)
            self.flows, self._held, self._draws = list(gpu.draws), gpu.sms.held, gpu.draws.copy()
        if flow is not None and kind != RERATED:
            if flow not in self.flows:
                self.flows.append(flow)
            num_sms = self.flows.index(flow)
        self._follow(Disturbance(kind, num_sms, bytes_per_ps, desired_bytes_per_ps))

    def _follow(self, change: Disturbance) -> None:
        """Be on the course with one more change, now."""
        solo, course, pattern = self._solo, self._course, self._chain.pattern
        assert course is not None
        book, since_ps = solo.shared.book, self.env.now - self._since_ps
        later = book.after(course, since_ps, change)
        # What others wait for may end before the last cell does.
        is_watched = bool(pattern.watched) and self._cell + 1 == len(pattern.cells)
        if is_watched and change.kind != ENDED:
            book.time(solo.own, later)
        if later.times is not None:
            if is_watched and not ends_well(later.times, pattern, self._cell):
                self.touched()
                return
            self._playing, due_ps = None, later.times.lasts_ps
        elif later.is_disturbed:
            self.touched()
            return
        elif is_watched:  # what has ended frees something next, now
            due_ps = self.due_ps - self._since_ps
        elif self._playing is None and later.at_least_ps > since_ps:
            due_ps = later.at_least_ps
        else:
            try:
                if self._playing is None:
                    self._playing = book.begin(solo.own, course)
                self._playing.play_before(since_ps)
                course.at_least_ps = max(course.at_least_ps, since_ps + (self._playing.next_ps > since_ps))
                self._playing.make(change)
                due_ps = self._playing.next_ps
            except DisturbedError:
                later.is_disturbed = True
                self.touched()
                return
        if due_ps <= since_ps and not solo.company.is_one:  # whether others do the same is known too late
            self.touched()
            return
        self._course = later
        self.set(self._since_ps + due_ps)
        solo.company.acted()

    def _knows(self) -> bool:
        """Whether what is under way ends when the span is due."""
        course = self._course
        return course is None or (
            course.times is not None and self._since_ps + course.times.lasts_ps == self.due_ps
        )

    def _under_way(self) -> int:
        """Book what is over; returns since when the first cell that is not is under way."""
        begin_ps = self._times.begin_ps
        self._book(bisect_right(begin_ps, self.env.now - self._begin_ps, self._cell, self._stop + 1) - 1)
        self._since_ps = self._begin_ps + begin_ps[self._cell]
        return self._since_ps

    def _begin_anew(self, kind: int, num_sms: int, flow: Flow | None, draw: tuple[float, float]) -> None:
        """Nothing of a cell has happened yet: it begins with the change."""
        held, draws = self.gpu.sms.held, self.gpu.draws
        if kind == TAKEN:
            held += num_sms
        elif kind == GIVEN_BACK:
            held -= num_sms
        elif kind == DRAWN and flow is not None:
            draws = {**draws, flow: draw}
        share = held, tuple(draws.values())
        ahead = self._solo.ahead(self._chain, self._cell, share)
        if ahead is None:
            self.touched()
        else:
            self._begin(self._cell, share, *ahead)

    def touched(self) -> None:
        """See :class:`simcore.engine.gpu.Sleeper`."""
        self._solo.company.take_apart()

    # -- company ---------------------------------------------------------------------------------

    @property
    def state(self) -> object:
        """See :class:`.company.Member`."""
        course = self._course
        since_ps = -1 if course is None else self._since_ps
        return self._chain.pattern, self._cell, self._stop, self._begin_ps, self._share, course, since_ps

    @property
    def is_over(self) -> bool:
        """See :class:`.company.Member`."""
        return self.env.now >= self.due_ps and self._knows()

    def finish(self) -> None:
        """See :class:`.company.Member`."""
        self.unset()
        self.due()

    def since(self) -> int:
        """See :class:`.company.Member`."""
        self.unset()
        return self._under_way() if self._course is None else self._since_ps

    @property
    def changes(self) -> Sequence[tuple[int, Disturbance]]:
        """See :class:`.company.Member`."""
        return () if self._course is None else self._course.changes

    def wake(self) -> None:
        """See :class:`.company.Member`."""
        if self._course is not None:
            self.gpu.sms.held, self.gpu.draws = self._held, self._draws
        self._go_on()
