"""Exact shortcuts: who may answer for the engine in places, so that fewer things have to happen.

``runs``: kernels that follow one another undisturbed are one event (:mod:`.runs`).  ``cells``: so are
stretches in which a rank meets nobody but its own class (:mod:`.solo`).  ``steady``: what repeats to the
picosecond from microbatch to microbatch is played a few times (:mod:`.steady`).  Each can be left out; the
result is the same.

Note [The seam]
    The engine knows none of them.  It has an *aid* (:class:`simcore.engine.simulate.Aid`), which says what
    kernels run as, and who, as a *player*, may answer for a stretch of a stream with one event.  Who sleeps
    through what it answers for *observes* the GPU and the links concerned, and is told before anybody touches
    them.  Steady states are a function from a graph to a result, or to nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from simcore.clock import give_back_memory, uncollected
from simcore.engine.execution import Execution
from simcore.engine.launches import host_costs
from simcore.engine.shortcuts.bookings import log_of
from simcore.engine.shortcuts.cell_times import CellBook
from simcore.engine.shortcuts.runs import Runs
from simcore.engine.shortcuts.solo import Solos, are_worthwhile
from simcore.engine.shortcuts.steady import repeated
from simcore.engine.shortcuts.ties import Tie, ties_of
from simcore.engine.simulate import Aid, counted
from simcore.engine.simulate import simulate as simulate_unaided

if TYPE_CHECKING:
    import numpy.typing as npt

    from simcore.collectives.plan import Planner
    from simcore.cost.demand import CostModel
    from simcore.engine.launches import HostCosts
    from simcore.engine.rank import Player, Rank
    from simcore.engine.rendezvous import Communicators
    from simcore.engine.result import Int32Array, SimulationResult
    from simcore.engine.shortcuts.settling import Settling
    from simcore.engine.simulate import Tapes
    from simcore.graph import Graph
    from simcore.graph.ops import IntArray
    from simcore.hardware import Topology
    from simcore.network.fluid import FluidNetwork

SHORTCUTS: Final = ("runs", "cells", "steady")
_MANY_EVENTS: Final = 20_000  # seconds of work


def simulate(
    graph: Graph,
    topology: Topology,
    cost: CostModel,
    planner: Planner,
    *,
    shortcuts: Collection[str] = SHORTCUTS,
    **options: Any,
) -> SimulationResult:
    """:func:`simcore.engine.simulate.simulate`, whose ``options`` it takes, with ``shortcuts``.

    A learned interference has no cells; noise and packets have no steady states.
    """

    def play(
        graph: Graph, begin_ps: IntArray | None = None, settling: Settling | None = None
    ) -> tuple[SimulationResult, Sequence[Sequence[Tie]]]:
        if begin_ps is not None:
            gc.collect()  # what was given up is in cycles
        aid = _Shortcuts(shortcuts, settling, cells=options.get("learned") is None)
        result = simulate_unaided(graph, topology, cost, planner, aid=aid, begin_ps=begin_ps, **options)
        ties = aid.ties
        del aid  # and with it what was played
        if result.engine_events > _MANY_EVENTS:
            gc.collect()  # few objects are in cycles, but they lie scattered in pages that nothing else is on
            give_back_memory()
        return result, ties

    def costs_of(ranks: IntArray) -> list[HostCosts]:
        variants = options.get("variants")
        if variants is None:
            return [host_costs(topology.cluster.gpu)] * len(ranks)
        return [host_costs(variants.gpus[number]) for number in variants.of_rank[ranks].tolist()]

    noise = options.get("noise")
    repeats = "steady" in shortcuts and options.get("network") != "packet"
    with uncollected():  # results of hundreds of thousands of ops would be scanned
        result = None
        if repeats and (noise is None or noise.sigma == 0.0):
            result = repeated(graph, play, costs_of)
        if result is None:
            result, _ = play(graph)
        elif result.engine_events > _MANY_EVENTS:
            give_back_memory()
        result = counted(result)
        if result.engine_events > _MANY_EVENTS:
            give_back_memory()
        return result


class _Shortcuts(Aid):
    """Runs and cells of one job."""

    def __init__(self, names: Collection[str], settling: Settling | None, *, cells: bool) -> None:
        self._settling = settling
        self._runs = Runs() if "runs" in names else None
        self._has_cells = "cells" in names and cells
        self._solos: Solos | None = None
        self.ties: Sequence[Sequence[Tie]] = ()
        if self._runs is not None:
            self.execution = self._runs.execute

    @property
    def num_events(self) -> int:  # type: ignore[override]
        """What timing cells took."""
        return self._solos.book.num_events if self._solos is not None else 0

    @property
    def num_ops(self) -> dict[str, int]:
        """See :class:`simcore.engine.simulate.Aid`."""
        return {} if self._runs is None else {"runs": self._runs.num_ops}

    def begin(self, graph: Graph, network: FluidNetwork, communicators: Communicators) -> None:
        """See :class:`simcore.engine.simulate.Aid`."""
        if self._has_cells and are_worthwhile(graph):
            apart = Runs().execute if self._runs is not None else Execution
            self._solos = Solos(network, CellBook(network.bytes_per_s, communicators, apart))

    def player(self, rank: Rank) -> Player | None:
        """See :class:`simcore.engine.simulate.Aid`."""
        return self._solos.of(rank) if self._solos is not None else None

    def start(self, ranks: Sequence[Rank], tapes: Tapes) -> None:
        """See :class:`simcore.engine.simulate.Aid`."""
        if self._settling is not None:
            self._settling.start(ranks, tapes, self._solos)

    def end(self, ranks: Sequence[Rank], network: FluidNetwork | None) -> None:
        """See :class:`simcore.engine.simulate.Aid`."""
        self.ties = ties_of(ranks, network)
        if self._solos is not None:
            self._solos.forget()

    def log(self) -> tuple[IntArray, Int32Array, npt.NDArray[np.float64]] | None:
        """See :class:`simcore.engine.simulate.Aid`."""
        return log_of(self._solos.booked) if self._solos is not None else None
