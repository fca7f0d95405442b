"""What a simulation returns: times per rank and op, use of links, and who answered for what."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import field, replace
from typing import Generic, Self, TypeVar, overload

import numpy as np
import numpy.typing as npt

from simcore.collectives.plan import CollectivePlan
from simcore.graph import Graph
from simcore.graph.ops import IntArray
from simcore.records import dataclass

_T = TypeVar("_T", bound=np.generic)
_Made = TypeVar("_Made")

Int32Array = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class RankTimes:
    """Times of one rank's ops, ps, indexed like ``Graph.flat_ops`` of its program.

    ``ready``: all dependencies met and the launch has reached the GPU; ``start``: first work; ``end``.
    Ops that take no GPU time (host, events) have ``start == end``.
    """

    ready_ps: IntArray
    start_ps: IntArray
    end_ps: IntArray


class MadeAnew(Sequence[_Made]):
    """By class of ranks, what is made of something smaller whenever somebody asks for it."""

    __slots__ = ()

    @abstractmethod
    def origin(self, number: int) -> object:
        """What that of a class is made of."""

    @abstractmethod
    def of(self, numbers: Sequence[int]) -> Self:
        """Only those of some classes."""


@dataclass(frozen=True, eq=False, slots=True)
class PlayedOut(MadeAnew[npt.NDArray[_T]], Generic[_T]):
    """What rows of the op table of ``graph`` say, ``by_row`` of each class of ranks.

    The column of a class, by flat op of its ``program``, is there only while somebody looks at it: rows are
    few, flat ops many.
    """

    graph: Graph
    program: tuple[int, ...]
    by_row: tuple[npt.NDArray[_T], ...]

    def __len__(self) -> int:
        return len(self.program)

    @overload
    def __getitem__(self, number: int) -> npt.NDArray[_T]: ...
    @overload
    def __getitem__(self, number: slice) -> list[npt.NDArray[_T]]: ...
    def __getitem__(self, number: int | slice) -> npt.NDArray[_T] | list[npt.NDArray[_T]]:
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(len(self)))]
        program = self.graph.programs[self.program[number]]
        return self.by_row[number][self.graph.flat_ops(program).row]

    def origin(self, number: int) -> object:
        """See :class:`MadeAnew`."""
        return self.by_row[number]

    def of(self, numbers: Sequence[int]) -> PlayedOut[_T]:
        """See :class:`MadeAnew`."""
        program = tuple(self.program[number] for number in numbers)
        return PlayedOut(self.graph, program, tuple(self.by_row[number] for number in numbers))


def time_column(times: Sequence[RankTimes], rank_class: int, name: str) -> IntArray:
    """One column of a class's times; where they are made anew, the others are not."""
    of_class = times.origin(rank_class) if isinstance(times, MadeAnew) else times[rank_class]
    column: IntArray = getattr(of_class, name)
    return column


def alike(columns: Sequence[object], rank_class: int) -> int:
    """The same number for classes of one program whose columns are one and the same."""
    return id(columns.origin(rank_class) if isinstance(columns, MadeAnew) else columns[rank_class])


def _of(columns: Sequence[_Made], numbers: Sequence[int]) -> Sequence[_Made]:
    return columns.of(numbers) if isinstance(columns, MadeAnew) else [columns[number] for number in numbers]


@dataclass(frozen=True)
class LinkCounters:
    """Step functions of link use: ``value[i]`` bytes/s on ``resource[i]`` from ``time_ps[i]`` on."""

    time_ps: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    resource: Int32Array = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    value: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0, dtype=np.float64))


@dataclass(frozen=True)
class LinkLog:
    """Changes of rates in order of time: at ``time_ps[i]`` that of ``plans[plan[i]]`` by ``change[i]``
    bytes/ps.
    """

    time_ps: IntArray
    plan: Int32Array
    change: npt.NDArray[np.float64]
    plans: Sequence[CollectivePlan]


@dataclass(frozen=True)
class Answered:
    """Op executions of all ranks in a step, and how many of them others answered for than the engine.

    ``folded``: by ranks that behave alike; ``steady``: by repetitions of a steady state; ``cells`` and
    ``runs``: within one event.  The others were played one by one.
    """

    num_ops: int = 0
    folded: int = 0
    steady: int = 0
    cells: int = 0
    runs: int = 0

    @property
    def played(self) -> int:
        """Op executions that nobody else answered for."""
        return self.num_ops - self.folded - self.steady - self.cells - self.runs


@dataclass(frozen=True)
class SimulationResult:
    """One simulated step of all ranks, stored by class of ranks that behave alike.

    ``class_of[rank]`` is a rank's class, ``representatives[c]`` the rank that was simulated for class
    ``c``; the other sequences are by class.  ``times`` may be made anew whenever they are asked for.
    ``alone_ps[c]`` is the time alone of each flat op (0 for communication), ``plan_of[c]`` the index into
    ``plans`` of the plan that carried it out (-1: none; a plan's ranks and links are one example's).
    ``counters`` are those of ``resources``, made from ``log``.
    """

    class_of: npt.NDArray[np.int64]
    representatives: npt.NDArray[np.int64]
    times: Sequence[RankTimes]
    alone_ps: Sequence[IntArray]
    plan_of: Sequence[Int32Array]
    plans: tuple[CollectivePlan, ...]
    step_ps: int
    engine_events: int
    resources: Sequence[str] = ()
    counters: LinkCounters = field(default_factory=LinkCounters)
    log: LinkLog | None = None
    answered: Answered = field(default_factory=Answered)
    warnings: tuple[str, ...] = ()

    def times_of(self, rank: int) -> RankTimes:
        """Times of one rank, those of its class."""
        return self.times[int(self.class_of[rank])]

    def told_once(self, graph: Graph) -> SimulationResult:
        """Where every rank was simulated: those that did the same at the same times as one class."""
        if len(self.representatives) < len(self.class_of):
            return self
        programs = graph.program_of_rank[self.representatives].tolist()
        number: dict[tuple[int, ...], int] = {}
        first: list[int] = []
        class_of = np.zeros(len(programs), dtype=np.int64)
        times, alone_ps, plan_of = self.times, self.alone_ps, self.plan_of
        for c, program in enumerate(programs):
            key = (program, alike(times, c), alike(alone_ps, c), alike(plan_of, c))
            if key not in number:
                number[key] = len(first)
                first.append(c)
            class_of[c] = number[key]
        return replace(
            self, class_of=class_of[self.class_of], representatives=self.representatives[first],
            times=_of(times, first), alone_ps=_of(alone_ps, first), plan_of=_of(plan_of, first),
        )  # fmt: skip
