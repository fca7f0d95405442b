"""What the ranks of a job share of their cells: how long they last, who goes through them, what is booked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING

from simcore.engine.shortcuts.apart import Share, Signature
from simcore.engine.shortcuts.bookings import Bookings
from simcore.engine.shortcuts.cell_times import CellBook, Course, OwnCalls
from simcore.engine.shortcuts.cells import Cell, Pattern
from simcore.engine.shortcuts.chain_times import ChainTimes, strung
from simcore.engine.shortcuts.company import Company
from simcore.engine.shortcuts.late import LateChains
from simcore.records import dataclass

if TYPE_CHECKING:
    from simcore.engine.rank import Rank
    from simcore.network.fluid import FluidNetwork


@dataclass
class Shared:
    """What the ranks of a job share."""

    network: FluidNetwork
    book: CellBook
    num_booked: int = 0
    booked: list[Bookings] = field(default_factory=list)
    chains: dict[tuple[Pattern, Signature, Share], ChainTimes] = field(default_factory=dict)
    of_course: dict[Course, ChainTimes] = field(default_factory=dict)
    alone: dict[Cell, Pattern] = field(default_factory=dict)
    companies: dict[tuple[int, ...], Company] = field(default_factory=dict)
    late: LateChains = field(init=False)

    def __post_init__(self) -> None:
        self.late = LateChains(self.book)

    def times(self, own: OwnCalls, pattern: Pattern, share: Share) -> ChainTimes:
        """Times of a chain as a rank carries out its calls."""
        key = (pattern, own.signature(pattern), share)
        found = self.chains.get(key)
        if found is None:
            times = {cell: self.book.course(own, cell, share).times for cell in dict.fromkeys(pattern.cells)}
            found = self.chains[key] = strung([times[cell] for cell in pattern.cells], pattern)
        return found

    def times_of(self, course: Course) -> ChainTimes:
        """Times of a cell with a course of its own."""
        found = self.of_course.get(course)
        if found is None:
            alone = self.alone.get(course.cell)
            if alone is None:
                alone = self.alone[course.cell] = Pattern.of((course.cell,))
            assert course.times is not None
            _ = course.times.columns  # it is over: written now, it need not be kept under way
            found = self.of_course[course] = strung([course.times], alone)
        return found

    def forget(self) -> None:
        """All has been played: let go of what would only be asked for while it is."""
        self.book.forget()
        self.late = LateChains(self.book)
        self.chains.clear()
        self.of_course.clear()

    def company(self, rank: Rank, ranks: Sequence[int]) -> Company:
        """Those whom a rank goes through its cells with: ``ranks``, itself among them, which it joins."""
        company = self.companies.get(tuple(ranks))
        if company is None:
            company = self.companies[tuple(ranks)] = Company(rank.gpu.clock, len(ranks))
        company.gpus.append(rank.gpu)
        return company
