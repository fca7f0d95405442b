"""How long cells last in a share of a GPU: each kind is simulated once, by itself, and remembered.

Note [Courses]
    What others do to the GPU while a cell is under way, taking SMs or HBM bandwidth or giving them back, are
    a few kinds of *changes*.  How the cell goes on depends on nothing but the changes since it began and when
    they came: its *course*.  Courses of a cell are a tree, whose root knows no change.  Each is found once,
    from one item of the cell (:mod:`.hit`) or by playing all of it; messages that reach equal stages of a
    pipeline at equal moments of a cell find it there.  Changes that the cell would answer, as where SMs have
    to wait for blocks that retire, or kernels slow a flow down through HBM, have no course: others are
    concerned, and everything is played.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from simcore.clock import Clock
from simcore.collectives.plan import CollectivePlan
from simcore.engine.rank import Rank
from simcore.engine.shortcuts.apart import (
    Apart,
    Disturbance,
    DisturbedError,
    Executed,
    Lab,
    Playing,
    Share,
    Signature,
)
from simcore.engine.shortcuts.hit import Hits
from simcore.records import dataclass

if TYPE_CHECKING:
    from simcore.engine.items import Call
    from simcore.engine.rendezvous import Communicators
    from simcore.engine.shortcuts.cells import Cell, Pattern
    from simcore.engine.shortcuts.laid import CellTimes
    from simcore.engine.tape import Tape

#: Courses with changes, some kB each; those that never come again must not fill the memory.
_MOST_COURSES: Final = 30_000


@dataclass(eq=False, slots=True)
class Course:
    """How a cell goes that begins in a ``share`` of the GPU, with ``changes`` (ps after it began, what).

    ``times`` are there if nothing else changes; None: nobody has asked yet, or others are concerned
    (``is_disturbed``).  The cell is not over before ``at_least_ps``.  ``later`` are its courses with one more
    change, ``before`` the one with one change less.
    """

    cell: Cell
    share: Share
    changes: tuple[tuple[int, Disturbance], ...]
    before: Course | None = None
    times: CellTimes | None = None
    is_disturbed: bool = False
    at_least_ps: int = 0
    later: dict[tuple[int, Disturbance], Course] = field(default_factory=dict)


class OwnCalls:
    """How a rank carries out the calls of its cells, but for where it stands.

    ``company``: the ranks that meet in them, itself among them.
    """

    def __init__(self, book: CellBook, rank: Rank, company: Sequence[int]) -> None:
        self.rank = rank
        self._book = book
        ports = [rank.communicators.ports(number) for number in company]
        self._ports = {link: (place, port) for place, of in enumerate(ports) for link, port in of.items()}
        self._signatures: dict[Pattern | Cell, Signature] = {}
        self._numbers: dict[Call, int] = {}

    def signature(self, part: Pattern | Cell) -> Signature:
        """How the calls of a part of the rank's tape are carried out, and on what GPU."""
        found = self._signatures.get(part)
        if found is None:
            plans = [self.number_of_plan(call) for call in part.distinct]
            found = self._signatures[part] = (self.rank.gpu.alone, *plans)
        return found

    def number_of_plan(self, call: Call) -> int:
        """Number of how a call is carried out, the same for all ranks that do so."""
        found = self._numbers.get(call)
        if found is None:
            plan = self.rank.bound(call)[1]
            links = tuple([(self._ports[use.link], use.weight, use.inputs) for use in plan.links])
            found = self._numbers[call] = self._book.number_of_plan((
                call.group, call.kind, call.peer_delta, plan.collective, plan.channels, plan.latency_ps,
                plan.between_ps, plan.volume_bytes, plan.rate_cap_bytes_per_s, plan.hbm_bytes_per_byte,
                plan.alone_ps, links,
            ), plan)  # fmt: skip
        return found


class CellBook:
    """Courses of cells by what is in them and by the share of the GPU that they get."""

    def __init__(
        self, bytes_per_s: npt.NDArray[np.float64], communicators: Communicators, execution: Executed
    ) -> None:
        self._execution = execution
        self._communicators = communicators
        self._bytes_per_s = bytes_per_s
        self._courses: dict[tuple[Cell, Signature, Share], Course] = {}
        self._num_courses = 0
        self._plans: dict[object, int] = {}
        self._links = Apart(Clock(), bytes_per_s)
        self._labs: list[Lab] = []
        self._tapes: dict[Cell, Tape] = {}
        self._hits = Hits()
        self._num_events = 0

    @property
    def num_events(self) -> int:
        """What it took."""
        return self._num_events + self._hits.num_found

    def course(self, own: OwnCalls, cell: Cell, share: Share) -> Course:
        """How a cell goes on a rank's GPU with ``share`` taken by others, with its times."""
        key = (cell, own.signature(cell), share)
        found = self._courses.get(key)
        if found is None:
            found = self._courses[key] = Course(cell, share, ())
            self.time(own, found)
        return found

    def after(self, course: Course, since_ps: int, change: Disturbance) -> Course:
        """The course with a change so long after the cell began."""
        found = course.later.get((since_ps, change))
        if found is None:
            if self._num_courses >= _MOST_COURSES:
                self._forget()
            self._num_courses += 1
            found = Course(course.cell, course.share, (*course.changes, (since_ps, change)), course)
            course.later[since_ps, change] = found
        return found

    def forget(self) -> None:
        """Nothing is played any more."""
        self._forget()
        self._courses.clear()
        self._labs.clear()
        self._tapes.clear()
        self._hits.forget()

    def _forget(self) -> None:
        """Courses with changes: each and the one before it are a circle, which nobody looks for meanwhile."""
        courses = list(self._courses.values())
        while courses:
            course = courses.pop()
            courses += course.later.values()
            course.later.clear()
        self._num_courses = 0

    def time(self, own: OwnCalls, course: Course) -> None:
        """Find the times of a course, unless that has been tried."""
        if not self.find(own, course) and not course.is_disturbed:
            try:
                self.end(self.begin(own, course), course)
            except DisturbedError:
                course.is_disturbed = True

    def find(self, own: OwnCalls, course: Course) -> bool:
        """Whether the times of a course are known, or found from those before its last changes."""
        before = course.before
        if course.times is not None or course.is_disturbed or before is None:
            return course.times is not None
        at = course.changes[-1][0]
        while before.before is not None and before.changes[-1][0] == at:
            before = before.before
        if not self.find(own, before):
            return False
        cell = course.cell
        assert before.times is not None
        course.times = self._hits.after(
            own.rank, cell, course.share, course.changes, before.times,
            lambda share: self.course(own, cell, share).times,
        )  # fmt: skip
        return course.times is not None

    def begin(self, own: OwnCalls, course: Course) -> Playing:
        """Play a cell by itself, up to the last change of its course.

        Errors: DisturbedError where others are concerned.
        """
        lab = self._labs.pop() if self._labs else self._new_lab()
        playing = Playing(lab, own.rank, own.signature(course.cell), course.cell, course.share)
        playing.make(course.changes)
        return playing

    def _new_lab(self) -> Lab:
        return Lab(self._bytes_per_s, self._communicators, self._execution, self._tapes)

    def end(self, playing: Playing, course: Course) -> None:
        """Play on to the end and note the times.  Errors: DisturbedError where something does not end."""
        course.times = playing.times()
        self._num_events += playing.num_events
        playing.lab.network.log.clear()
        self._labs.append(playing.lab)

    def number_of_plan(self, content: tuple[object, ...], plan: CollectivePlan) -> int:
        """Number of a plan with that content on the links of the cells."""
        key = (*content, self._links.route(plan).alone)
        return self._plans.setdefault(key, len(self._plans))
