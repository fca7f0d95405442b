"""Cells of a chain as one event, taken apart where somebody comes or goes.

Note [Catching up]
    While a span is under way its rank's streams sleep.  When a flow or a kernel of others touches the GPU or
    the links of the span, cells that are over are booked, and the one that is under way is played from its
    start, event by event, up to now (:meth:`simcore.clock.Clock.catching_up`): its events concern nobody
    else.  From there on the rank goes on as if it had never slept.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from simcore.clock import Movable

if TYPE_CHECKING:
    from simcore.engine.shortcuts.cells import Chain
    from simcore.engine.shortcuts.chain_times import ChainTimes
    from simcore.engine.shortcuts.solo import Solo


class Span(Movable):
    """Cells ``first`` to ``stop`` of a chain on a rank's GPU; fires when the main stream goes on."""

    def __init__(self, solo: Solo, chain: Chain, times: ChainTimes, first: int, stop: int) -> None:
        super().__init__(solo.rank.gpu.clock)
        self._solo = solo
        self._chain = chain
        self._times = times
        self._first = first
        self._stop = stop
        self._begin_ps = self.env.now - times.begin_ps[first]  # when the chain would have begun
        solo.rank.gpu.observer = self
        self.set(self._begin_ps + times.begin_ps[stop])

    def due(self) -> None:
        """All cells are over."""
        self._go_on(self._stop)

    def touched(self) -> None:
        """Somebody is about to use the GPU or the links: be where the rank is now."""
        self.unset()
        now, times = self.env.now, self._times
        over = bisect_right(times.begin_ps, now - self._begin_ps, self._first, self._stop + 1) - 1
        if over >= self._stop:
            self._go_on(self._stop)
        else:
            with self.env.catching_up(self._begin_ps + times.begin_ps[over]):
                self._go_on(over)

    def _go_on(self, cell: int) -> None:
        """Book what is over; the streams go on at the start of ``cell``."""
        solo = self._solo
        solo.rank.gpu.observer = None
        if cell > self._first:
            solo.book(self._chain, self._times, self._first, cell, self._begin_ps)
        solo.by_itself = self._chain.at[cell][0] if cell < self._stop else -1
        self.fire()
