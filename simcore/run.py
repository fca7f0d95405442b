"""The one way from a job and a cluster to its simulation: every command, study and validation goes it.

Topology, collectives, prices of kernels under load, ranks that differ and noise are put together here and
nowhere else, so that what is validated is what a user is told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from simcore.collectives import AlphaBetaPlanner, NcclPlanner
from simcore.collectives.kinds import COLLECTIVES
from simcore.collectives.plan import Planner
from simcore.errors import InputError, nearest
from simcore.graph import Graph, OpTable
from simcore.graph.size import refuse_too_large_graph
from simcore.hardware import ClusterSpec, GpuSpec, Topology, hardware_hash
from simcore.memory import OutsideHolders, OutsideMemory, outside_memory
from simcore.network.packet import PacketSettings
from simcore.records import dataclass
from simcore.units import s_from_ps

if TYPE_CHECKING:
    from simcore.cost import CostModel, Demands, MeasuredTable, RooflineCost
    from simcore.engine import SimulationResult, Variants
    from simcore.interference import LearnedInterference


@dataclass(frozen=True)
class Setup:
    """How a job is simulated, beside the job and its cluster.

    ``network``: "fluid", "alphabeta" or "packet", which ``packets`` says more about.  ``nccl``: arguments of
    :class:`NcclPlanner` that the user chose.  ``fp32_math`` and ``tables`` (measured kernel times) go to the
    cost model.  ``rank_gpus``: GPUs of single ranks that differ from the cluster's.  ``noise_sigma`` and
    ``seed``: log-normal noise of kernel times.  ``learned``: how communication slows kernels, instead of what
    they share.  ``fold`` and ``shortcuts`` (None: all): what :mod:`simcore.engine.shortcuts` may answer for;
    the result is the same.
    """

    network: str = "fluid"
    nccl: Mapping[str, Any] = field(default_factory=dict)
    fp32_math: str = "ieee"
    tables: tuple[MeasuredTable, ...] = ()
    packets: PacketSettings = field(default_factory=PacketSettings)
    rank_gpus: Mapping[int, GpuSpec] = field(default_factory=dict)
    noise_sigma: float = 0.0
    seed: int = 0
    learned: LearnedInterference | None = None
    fold: bool = True
    shortcuts: frozenset[str] | None = None


@dataclass(frozen=True)
class Ran:
    """A simulated step: its result, what kernels asked for, and what was taken for granted of the GPUs.

    ``demands`` is None where another cost model than the cluster's was given.
    """

    result: SimulationResult
    demands: Demands | None
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def step_s(self) -> float:
        """Step time, seconds."""
        return s_from_ps(self.result.step_ps)


def shortcuts_of(text: str) -> frozenset[str]:
    """Shortcuts by ``engine.shortcuts``: all, none, or names with commas between.  InputError for another."""
    from simcore.engine.shortcuts import SHORTCUTS

    if text in ("all", "none"):
        return frozenset(SHORTCUTS if text == "all" else ())
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in SHORTCUTS:
            known = ("all", "none", *SHORTCUTS)
            raise InputError(
                f"engine.shortcuts: unknown {name!r} (known: {', '.join(known)}){nearest(name, known)}"
            )
    return frozenset(names)


def run(
    graph: Graph,
    cluster: ClusterSpec,
    setup: Setup | None = None,
    *,
    cost: CostModel | None = None,
    planner: Planner | None = None,
    variants: Variants | None = None,
    counters: bool = True,
    progress: Callable[[float], None] | None = None,
) -> Ran:
    """Simulate one step of ``graph`` on ``cluster``.

    Kernels are priced for the GPU under the load of the whole job, see Note [Slowest GPU].  ``cost``,
    ``planner`` and ``variants`` replace what follows from the hardware, for recordings whose durations are
    known.  Without ``counters`` the result does not say what links carried, for who asks for times alone.
    ``progress`` gets the share done, 0..1.

    Errors: as :func:`simulate`; InputError for NCCL settings that cannot be, or a rank outside the job.
    """
    from simcore.engine import Noise  # here: who asks for memory or prices needs none
    from simcore.engine.shortcuts import SHORTCUTS, simulate

    setup = setup or Setup()
    refuse_too_large_graph(graph, f"workload {graph.workload.name!r}")
    topology, nccl = wired(cluster, setup.nccl)
    plans = planner or (AlphaBetaPlanner(nccl) if setup.network == "alphabeta" else nccl)
    remembered, said, warned = None, "", ""
    if cost is None:
        of_gpu = _prices(cluster, graph.world_size, graph.workload.precision, setup)
        cost = remembered = _Remembered(of_gpu)
        said, warned = cluster.gpu.load_remarks(graph.world_size)
        variants = variants or _variants(graph, cluster, setup, cost)
    result = simulate(
        graph,
        topology,
        cost,
        plans,
        network=setup.network,
        packets=replace(setup.packets, seed=setup.seed),
        fold=setup.fold,
        shortcuts=SHORTCUTS if setup.shortcuts is None else setup.shortcuts,
        variants=variants,
        learned=setup.learned,
        noise=Noise(setup.noise_sigma, setup.seed) if setup.noise_sigma else None,
        counters=counters,
        progress=progress,
    )
    return Ran(
        result,
        remembered.last if remembered is not None else None,
        (said,) if said else (),
        tuple(filter(None, (warned, cluster.gpu.borrowed))),
    )


def priced(gpu: GpuSpec, num_ranks: int, precision: str, setup: Setup) -> RooflineCost:
    """Prices of kernels on ``gpu`` under the load of a job of ``num_ranks``."""
    from simcore.cost import RooflineCost  # here: who only asks what a GPU's memory holds needs no prices

    math = "tf32" if precision == "tf32" else setup.fp32_math
    return RooflineCost(gpu.under_load(num_ranks), fp32_math=math, tables=setup.tables)


def _prices(cluster: ClusterSpec, num_ranks: int, precision: str, setup: Setup) -> RooflineCost:
    """:func:`priced` for a cluster's GPUs, which jobs of one search share: equal kernels are priced once."""
    settings = num_ranks, precision == "tf32", setup.fp32_math, *map(id, setup.tables)
    key = (cluster.gpu.name, _hash_of(cluster), settings)
    if key not in _PRICES:
        if len(_PRICES) >= _KEPT:
            _PRICES.clear()
        _PRICES[key] = priced(cluster.gpu, num_ranks, precision, setup)
    return _PRICES[key]


def _variants(graph: Graph, cluster: ClusterSpec, setup: Setup, cost: CostModel) -> Variants | None:
    """GPUs of the ranks that differ; None when none does.  InputError for a rank outside the job."""
    if not setup.rank_gpus:
        return None
    from simcore.engine import Variants

    of_rank = np.zeros(graph.world_size, dtype=np.int64)
    gpus: list[GpuSpec] = [cluster.gpu]
    costs: list[CostModel] = [cost]
    for rank, gpu in setup.rank_gpus.items():
        if not 0 <= rank < graph.world_size:
            raise InputError(f"rank.{rank}: the job has ranks 0 to {graph.world_size - 1}")
        if gpu not in gpus[1:]:
            gpus.append(gpu)
            costs.append(priced(gpu, graph.world_size, graph.workload.precision, setup))
        of_rank[rank] = gpus.index(gpu, 1)
    return Variants(tuple(gpus), tuple(costs), of_rank)


class _Remembered:
    """A cost model that remembers its last answer, so that the run can say where its times come from."""

    def __init__(self, cost: CostModel) -> None:
        self._cost = cost
        self.last: Demands | None = None

    def demands(self, ops: OpTable, used: npt.NDArray[np.bool_] | None = None) -> Demands:
        """As the model says."""
        self.last = self._cost.demands(ops, used)
        return self.last


#: Clusters seen last with their wiring and NCCL's choices on them: jobs of one table or search share both, as
#: long as there are few of them and the groups of ranks that they ask about have few members in all.
_LAST: Final[dict[tuple[str, ...], tuple[Topology, NcclPlanner]]] = {}
_KEPT: Final = 8
_KEPT_RANKS: Final = 30_000  # some 20 MB of plans
#: Prices of kernels on clusters seen last; they hold the tables whose identities they are known by.
_PRICES: Final[dict[tuple[object, ...], RooflineCost]] = {}
#: Hashes of clusters seen last, by identity: a search asks about one of them thousands of times.
_HASHES: Final[dict[int, tuple[ClusterSpec, str]]] = {}


def outside_on(cluster: ClusterSpec, nccl: Mapping[str, Any], holders: OutsideHolders) -> OutsideMemory:
    """What ``holders`` take of each GPU of a cluster beside the allocator.  InputError for bad ``nccl``."""
    return outside_memory(cluster.gpu, holders, wired(cluster, nccl)[1].buffer_bytes)


def wired(cluster: ClusterSpec, nccl: Mapping[str, Any]) -> tuple[Topology, NcclPlanner]:
    """A cluster's links, and NCCL's choices on them as far as ``nccl`` leaves them to it."""
    key = (cluster.name, _hash_of(cluster), repr(sorted(nccl.items())), str(COLLECTIVES.revision))
    if sum(planner.num_planned_ranks for _, planner in _LAST.values()) > _KEPT_RANKS:
        _LAST.clear()
    if key not in _LAST:
        topology = Topology(cluster)
        try:
            planner = NcclPlanner(topology, **nccl)
        except InputError as error:
            raise InputError(f"nccl settings: {error}") from None
        if len(_LAST) >= _KEPT:
            _LAST.clear()
        _LAST[key] = topology, planner
    return _LAST[key]


def _hash_of(cluster: ClusterSpec) -> str:
    if id(cluster) not in _HASHES:
        if len(_HASHES) >= _KEPT:
            _HASHES.clear()
        _HASHES[id(cluster)] = cluster, hardware_hash(cluster)
    return _HASHES[id(cluster)][1]
