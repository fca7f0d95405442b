"""At what pace each class of ranks repeats itself, seen while they play.

Replicas whose messages have further to go repeat themselves more slowly.  When each should begin follows from
that (Note [Steady state]), and nothing else of the job so far does: it is given up, and simulated once more.
What is read off here is a guess, since the steady state is looked for when that has been played.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from simcore.engine.shortcuts.ties import parts_of, ties_of
from simcore.graph.kinds import is_p2p
from simcore.network.fluid import FluidNetwork

if TYPE_CHECKING:
    from simcore.engine.rank import Rank
    from simcore.engine.shortcuts.repeats import Shortened
    from simcore.engine.tape import Tape
    from simcore.graph.ops import IntArray


class OutOfStepError(Exception):
    """Classes come to paces of their own: they should begin at ``begin_ps``.  ``events`` have happened."""

    def __init__(self, begin_ps: IntArray, events: int) -> None:
        super().__init__(events)
        self.begin_ps = begin_ps
        self.events = events


class Pace:
    """Watches classes of ranks that play a shortened job, until their paces are known."""

    def __init__(self, short: Shortened) -> None:
        self._short = short
        self._messages: dict[Tape, tuple[int, ...]] = {}
        self._is_known = False

    def look(self, ranks: Sequence[Rank], events: int) -> None:
        """See how far they are, ``events`` having happened.

        Errors: OutOfStepError once all have repeated themselves, if parts of the job (:mod:`.ties`) that have
        had nothing to do with each other differ in their pace, and nobody else does.
        """
        if self._is_known or len(ranks) <= len(self._short.graph.programs):  # nobody stands for a replica
            return
        periods = []
        for rank in ranks:
            starts = [rank.item_start[item] for item in self._items(rank)]
            if not starts or min(starts) < 0:
                return
            periods.append(starts[1] - starts[0])
        self._is_known = True
        period = np.array(periods, dtype=np.int64)
        late = self._short.left_out * (period - period.min())
        if not late.any():
            return
        network = ranks[0].gpu.network
        ties = ties_of(ranks, network if isinstance(network, FluidNetwork) else None)  # of calls so far
        if (period == period[parts_of(ties, lambda *_: True).of_class]).all():
            raise OutOfStepError(late, events)

    def _items(self, rank: Rank) -> tuple[int, ...]:
        """The last message of a rank's last repetition but one that all ranks keep, and the same one
        repetition later; nothing where it sends and receives nothing.
        """
        tape, short = rank.tape, self._short
        found = self._messages.get(tape)
        if found is None:
            begin, size, _ = short.repeated(int(short.graph.program_of_rank[rank.number]))
            stop = begin + (min(repeats.copies for repeats in short.repeats) - short.left_out) * size
            last = (
                stop - size + np.flatnonzero(is_p2p(short.graph.ops.kind[tape.flat.row[stop - size : stop]]))
            )
            both = np.flatnonzero(np.isin(tape.order, [last[-1:], last[-1:] - size]))
            found = self._messages[tape] = tuple(tape.item_of[both].tolist())
        return found
