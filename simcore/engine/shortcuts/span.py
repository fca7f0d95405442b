"""A rank's cells as one event: what others change meanwhile, and who is woken.

Note [Sleeping on]
    While a span is under way its rank's streams sleep.  What others do to the GPU changes the course of the
    cell that is under way (Note [Courses]): it ends at another time, and the next cells begin in another
    share of the GPU.

Note [Catching up]
    When others use the links of the span, or when a change has no course, the cell that is under way is
    played from its start, event by event, up to now, with all changes since then
    (:meth:`simcore.clock.Clock.catching_up`): its events concern nobody else.  From there on the rank goes on
    as if it had never slept.

Note [Watched items]
    When one ends and the cell goes on, who waits for it is woken, while the rank sleeps on.  What he does to
    the GPU at that instant comes before the next item of its stream: in courses it follows a change that says
    so.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from simcore.clock import Movable, Signal
from simcore.engine.gpu import DRAWN, ENDED, GIVEN_BACK, RERATED, TAKEN
from simcore.engine.shortcuts.apart import RELEASED, Disturbance, DisturbedError, Playing, Share
from simcore.engine.shortcuts.rank_cells import RankCells

if TYPE_CHECKING:
    from simcore.engine.shortcuts.cell_times import Course
    from simcore.engine.shortcuts.cells import Chain
    from simcore.engine.shortcuts.chain_times import ChainTimes
    from simcore.network.flow import Drawer
    from simcore.network.link import Link


_new: Final = tuple.__new__  # without the call that a named tuple's own one makes

#: Ranks whose spans, after so many of them, have mostly been taken apart go without.
_TRIALS: Final = 50


class Solo(RankCells):
    """Who answers for stretches of a rank's main stream."""

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

    def asleep_until(self) -> Sequence[int] | None:
        """The items of its streams before which what it sleeps through ends, None when it is awake."""
        span = self.rank.gpu.sleeper
        return span.place if isinstance(span, Span) else None


class Span(Movable):
    """Cells of a chain on a rank's GPU, from ``cell`` on to ``stop``; fires when the main stream goes on.

    ``cell`` is the first one that is not booked, ``begin_ps`` when the chain would have begun.  Where a
    ``course`` is set, that cell is under way on it since ``since_ps``; where its end cannot be found
    (:meth:`.cell_times.CellBook.find`), it is being played apart (``playing``), event by event, as time goes
    by.  ``coming`` are watched items that are still to end: when, of which cell, which of them.
    """

    def __init__(
        self, solo: Solo, chain: Chain, cell: int, share: Share, times: ChainTimes, stop: int
    ) -> None:
        super().__init__(solo.rank.gpu.clock)
        self._solo = solo
        self.gpu = solo.rank.gpu
        self.flows: list[Drawer] = []
        self._chain = chain
        self._course: Course | None = None
        self._playing: Playing | None = None
        self.gpu.sleeper = self
        self._begin(cell, share, times, stop)

    def _begin(self, cell: int, share: Share, times: ChainTimes, stop: int) -> None:
        """Begin ``cell`` now."""
        self._cell, self._share, self._times, self._stop = cell, share, times, stop
        begin_ps = self._begin_ps = self.env.now - times.begin_ps[cell]
        self._released_ps = -1
        self._coming = [
            (begin_ps + since_ps, of, number) for since_ps, of, number in times.released if cell <= of < stop
        ]
        self._wait(begin_ps + times.begin_ps[stop])
        if not self._solo.company.is_one:
            self._solo.company.acted()

    def _wait(self, end_ps: int) -> None:
        """Be due when what is under way ends, or a watched item does before."""
        self._end_ps = end_ps
        self.set(min(end_ps, self._coming[0][0]) if self._coming else end_ps)

    # -- watched items ---------------------------------------------------------------------------

    def _has_released(self) -> bool:
        """Whether a watched item has ended now: who waits for it has been woken.

        What ends with the last cell is left to the end of that.
        """
        coming, chain = self._coming, self._chain
        if coming[0][0] > self.env.now:
            return False
        _, cell, number = coming[0]
        if coming[0][0] == self._end_ps and cell + 1 == len(chain.pattern.cells):
            return False
        self._coming = coming[1:]
        self._wait(self._end_ps)
        self._released_ps, self._released = self.env.now, number
        self._solo.rank.release(*self._watched(cell, number))
        return True

    def _watched(self, cell: int, number: int) -> tuple[int, int]:
        """Stream and item of a watched item."""
        cells, chain = self._solo.cells, self._chain
        stream, item = chain.pattern.cells[cell].watched[number]
        return cells.streams[stream], cells.at(chain.place + cell)[0][stream] + item

    def to_come(self, number: int) -> Signal | None:
        """See :class:`.apart.Actor`."""
        return self._solo.rank.to_come(*self._watched(self._cell, number))

    @property
    def place(self) -> Sequence[int]:
        """Where the streams go on when all is over."""
        return self._solo.cells.at(self._chain.place + self._stop)[0]

    # -- the end of cells ------------------------------------------------------------------------

    def due(self) -> None:
        """A watched item has ended, or all cells up to ``stop``, or the one on a course of its own."""
        chain = self._chain
        if self._coming and self._has_released():
            return
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
        if self._playing is None:
            book.find(self._solo.own, course)
        if course.times is not None:  # somebody else may have found them meanwhile
            end_ps = self._since_ps + course.times.lasts_ps
            if end_ps > self.env.now:
                self._wait(end_ps)
            return end_ps == self.env.now
        since_ps = self.env.now - self._since_ps
        try:
            if self._playing is None:
                self._playing = book.begin(self._solo.own, course)
            self._playing.clock.play_until(since_ps + 1)
            if self._playing.is_over:
                book.end(self._playing, course)
            else:
                self._wait(self._since_ps + self._playing.next_ps)
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
        flow: Drawer | None = None,
        bytes_per_ps: float = 0.0,
        desired_bytes_per_ps: float = 0.0,
    ) -> None:
        """See :class:`simcore.engine.gpu.Sleeper`."""
        now, gpu = self.env.now, self.gpu
        while now >= self.due_ps and (self._is_known or self.due_ps < self._end_ps):
            self.finish()  # its event has not come yet
            if gpu.sleeper is not self:
                if gpu.sleeper is not None:
                    gpu.sleeper.change(kind, num_sms, flow, bytes_per_ps, desired_bytes_per_ps)
                return
        if self._course is None and self._under_way() == now:
            if kind != ENDED:  # what that frees comes next
                self._begin_anew(kind, num_sms, flow, (bytes_per_ps, desired_bytes_per_ps))
            return
        if self._course is None:
            cell = self._times.pattern.cells[self._cell]
            self._course = self._solo.shared.book.course(self._solo.own, cell, self._share)
            self._coming = [one for one in self._coming if one[1] == self._cell]
            self.flows, self._held, self._draws = list(gpu.draws), gpu.sms.held, gpu.draws.copy()
        if flow is not None and kind != RERATED:
            if flow not in self.flows:
                self.flows.append(flow)
            num_sms = self.flows.index(flow)
        self._follow(_new(Disturbance, (kind, num_sms, bytes_per_ps, desired_bytes_per_ps)))

    def _follow(self, change: Disturbance) -> None:
        """Be on the course with one more change, now."""
        solo, course = self._solo, self._course
        assert course is not None
        book, since_ps = solo.shared.book, self.env.now - self._since_ps
        is_watched = bool(self._coming)
        if self._released_ps == self.env.now:
            is_watched = True
            if self._released >= 0:
                course = book.after(course, since_ps, Disturbance(RELEASED, self._released))
                self._released = -1
        later = book.after(course, since_ps, change)
        if change.kind == ENDED and self._playing is None:  # what that frees comes next, now
            self._course = later
            return
        if is_watched:
            book.time(solo.own, later)
        if later.times is not None:
            self._playing, due_ps = None, later.times.lasts_ps
            if self._coming:
                left = later.times.released[-len(self._coming) :]
                self._coming = [(self._since_ps + ends_ps, self._cell, which) for ends_ps, which in left]
        elif later.is_disturbed:
            self.touched()
            return
        elif self._playing is None and later.at_least_ps > since_ps:
            due_ps = later.at_least_ps
        elif self._playing is None and solo.company.is_one and change.kind != TAKEN:
            due_ps = since_ps  # when all that comes now has come
        else:
            try:
                if self._playing is None:
                    self._playing = book.begin(solo.own, course)
                self._playing.clock.play_until(since_ps)
                course.at_least_ps = max(course.at_least_ps, since_ps + (self._playing.next_ps > since_ps))
                self._playing.make([(since_ps, change)])
                due_ps = self._playing.next_ps
            except DisturbedError:
                later.is_disturbed = True
                self.touched()
                return
        if due_ps <= since_ps and not solo.company.is_one:  # whether others do the same is known too late
            self.touched()
            return
        self._course = later
        self._wait(self._since_ps + due_ps)
        solo.company.acted()

    @property
    def _is_known(self) -> bool:
        """Whether what is under way ends when it is said to."""
        course = self._course
        return course is None or (
            course.times is not None and self._since_ps + course.times.lasts_ps == self._end_ps
        )

    def _under_way(self) -> int:
        """Book what is over; returns since when the first cell that is not is under way."""
        begin_ps = self._times.begin_ps
        self._book(bisect_right(begin_ps, self.env.now - self._begin_ps, self._cell, self._stop + 1) - 1)
        self._since_ps = self._begin_ps + begin_ps[self._cell]
        return self._since_ps

    def _begin_anew(self, kind: int, num_sms: int, flow: Drawer | None, draw: tuple[float, float]) -> None:
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

    def touched(self, link: Link | None = None) -> None:
        """See :class:`simcore.engine.gpu.Sleeper`."""
        while link is not None and self.env.now >= self._end_ps and self._is_known:
            self.finish()  # its event has not come yet
            if self.gpu.sleeper is not self:
                self.gpu.touched(link)
                return
        if link is None or self._uses(link):
            self._solo.company.take_apart()

    def _uses(self, link: Link) -> bool:
        """Whether the cell under way does; the span ends before the first one after it that does."""
        solo, chain = self._solo, self._chain
        if self._course is None:
            self._under_way()
        cell = self._cell
        if solo.before(chain, link, cell, cell + 1) == cell:
            return True
        stop = solo.before(chain, link, cell, self._stop)
        if self._course is None and stop < self._stop:
            self._stop = stop
            self._coming = [one for one in self._coming if one[1] < stop]
            self._wait(self._begin_ps + self._times.begin_ps[stop])
            solo.company.acted()
        return False

    # -- company ---------------------------------------------------------------------------------

    @property
    def state(self) -> object:
        """See :class:`.company.Member`."""
        course = self._course
        since_ps = -1 if course is None else self._since_ps
        where = self._cell, self._stop, len(self._coming)
        return self._times.pattern, where, self._begin_ps, self._share, course, since_ps

    @property
    def is_over(self) -> bool:
        """See :class:`.company.Member`."""
        return self.env.now >= self._end_ps and self._is_known

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
