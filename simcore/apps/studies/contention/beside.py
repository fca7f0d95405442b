"""One kernel beside communication on the engine's GPU, and the numbers that its placement rests on."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Final

from simpy.events import Event, Timeout

from simcore.apps.replay.alone import STREAMING, Streaming, demand_alone
from simcore.apps.studies.contention.pairs import Neighbour
from simcore.clock import Clock
from simcore.collectives import NcclPlanner
from simcore.collectives.plan import CollectivePlan
from simcore.engine.execution import Execution
from simcore.engine.gpu import Gpu
from simcore.engine.kernel import RunningKernel
from simcore.engine.sequence import Demand, KernelSequence
from simcore.errors import InputError
from simcore.hardware import ClusterSpec, Topology
from simcore.hardware.sm import ThreadBlock, fences_ps
from simcore.hardware.specs import GpuSpec
from simcore.network.flow import OUTSIDE, Flow
from simcore.network.fluid import FixedNetwork
from simcore.records import dataclass
from simcore.units import PS_PER_S, PS_PER_US
from workloads.imports.collective_names import graph_collective

FOREVER_PS: Final = 1 << 56  # communication that outlives the kernel holds its SMs as long as the kernel runs

_MOST_EXPONENT: Final = 40  # of two: bytes of a collective
_TELLING: Final = 0.9  # sizes whose times differ by less are not told apart
_LARGE: Final = 1 << 30  # bytes that move at a collective's full rate
_LITTLE: Final = 1e-12  # bytes/ps of HBM: that data moves is known, not how much of it passes HBM


@dataclass(frozen=True)
class Physics:
    """What was found on recorded kernels, as values that can be fitted to some traces and tried on others.

    ``partners``: large tiles lose all of a TPC for a block of communication, see Note [Carve-outs] of
    ``hardware/sm.py``.  ``peers``: blocks of an exchange end with the data of their peers.  ``full_us``: what
    kernels wait for writes that fill the links, see Note [Fences] there; None: as the GPU's profile says.
    Those of a few peers cost no more than that.  ``draws``: what communication moves passes HBM.
    The others are those of :class:`Streaming` and :class:`RunningKernel`.
    """

    partners: bool = True
    peers: bool = True
    draws: bool = True
    full_us: float | None = None
    small_grids: bool = STREAMING.small_grids
    fills: bool = STREAMING.fills
    staged: bool = STREAMING.staged
    waits: bool = STREAMING.waits
    saturating: float = STREAMING.saturating
    prefetching: bool = STREAMING.prefetching
    in_common: float = RunningKernel.in_common
    side_by_side: float = RunningKernel.side_by_side

    def execution(self) -> type[Execution]:
        """What a sequence of kernels runs as."""
        values = {"in_common": self.in_common, "side_by_side": self.side_by_side, "__slots__": ()}
        kernel = type("Kernel", (RunningKernel,), values)
        return type("Run", (Execution,), {"kernel_type": kernel})


PHYSICS: Final = Physics()


@dataclass(frozen=True)
class Beside:
    """A kernel that lasts ``alone_ps`` by itself, and the communication beside it.

    Arguments as those of :func:`demand_alone`; ``channels`` knows NCCL on the cluster.  ``guessed``: nobody
    recorded ``blocks``.
    """

    alone_ps: int
    start_ps: int
    kind: str
    blocks: int
    blocks_per_sm: int
    block: ThreadBlock | None
    moved: tuple[int, int]
    neighbours: tuple[Neighbour, ...]
    channels: Channels
    guessed: bool = False

    def demand(self, physics: Physics = PHYSICS) -> Demand:
        """What the kernel asks of the GPU."""
        found = demand_alone(
            self.alone_ps, self.start_ps, self.kind, self.blocks,
            self.blocks_per_sm, self.channels.gpu, self.block, self.moved,
            Streaming(
                physics.saturating, physics.prefetching, physics.small_grids, physics.fills, physics.staged,
                physics.waits,
            ),
        )  # fmt: skip
        return found if physics.partners else (*found[:6], min(found[6], 1), found[7])

    def told(self) -> Beside:
        """The kernel with nothing but what is recorded of it."""
        return replace(self, blocks=0, block=None, guessed=False) if self.guessed else self

    def holdings(self, physics: Physics = PHYSICS) -> tuple[Holding, ...]:
        """What communication holds of the GPU, and when."""
        return tuple(part for one in self.neighbours for part in self.channels.holdings(one, physics))

    def time_ps(self, physics: Physics = PHYSICS) -> int:
        """How long the kernel lasts beside its neighbours."""
        return time_beside(
            self.channels.gpu, self.demand(physics), self.alone_ps, self.holdings(physics), physics
        )


class Channels:
    """SMs of a recorded communication kernel: its thread blocks, else the channels that NCCL would use, each
    on so many SMs.
    """

    def __init__(self, cluster: ClusterSpec, sms_per_channel: float) -> None:
        self.gpu = cluster.gpu
        self._sms_per_channel = sms_per_channel
        self._planner = NcclPlanner(Topology(cluster))
        self._num_gpus = cluster.num_gpus
        self._limit = cluster.gpu.num_sms - 1
        self._known: dict[tuple[str, int, int], CollectivePlan | None] = {}

    def holdings(self, one: Neighbour, physics: Physics) -> tuple[Holding, ...]:
        """What a communication kernel holds of the GPU, and when its data moves.

        That of a collective moves last, when all ranks are there, for as long as NCCL takes.  That of an
        exchange by peers moves first, among those who are there, for as long as NCCL would take among all on
        so many channels; later what is left waits for peers that come late, one after the other.  Where the
        size is not recorded it may move at any time: as one of a GiB would, behind fences of a few peers; an
        exchange's by peers is taken to be nearly over.
        """
        full_ps, few_ps = fences_ps(self.gpu.table("sm"))
        if physics.full_us is not None and full_ps:
            full_ps = round(physics.full_us * PS_PER_US)
            few_ps = min(few_ps, full_ps)
        size = min(one.group_size, self._num_gpus)
        plan = self.plan_of(one)
        sms = self._sms(one.blocks or (plan.channels if plan is not None else 0))
        end_ps = FOREVER_PS if one.outlives else one.end_ps
        if not one.by_peers:
            moving = plan or (self.plan(one.collective, _LARGE, size) if size > 1 else None)
            draw = _draw(moving) if moving is not None and physics.draws else 0.0
            if plan is None:
                return (Holding(one.begin_ps, end_ps, sms, one.begin_ps, few_ps, draw),)
            moves = max(one.begin_ps, one.end_ps - _lasts_ps(plan))
            return (Holding(one.begin_ps, end_ps, sms, moves, full_ps, draw),)
        last = min(sms, self._sms(-(-one.blocks // max(2, size)) if size else 1)) if physics.peers else sms
        waits = Holding(one.begin_ps, end_ps, last, one.begin_ps, few_ps)
        if plan is None:
            return (waits,)
        slower = max(1.0, plan.channels / one.blocks) if one.blocks else 1.0
        until = min(one.end_ps, one.begin_ps + round(_lasts_ps(plan) * slower))
        if until <= 0:
            return (waits,)
        draw = _draw(plan) / slower if physics.draws else 0.0
        return (waits, Holding(one.begin_ps, until, sms - last, one.begin_ps, full_ps, draw))

    def plan_of(self, one: Neighbour) -> CollectivePlan | None:
        """What NCCL does for a recorded collective; None where neither size nor blocks tell that.

        What has neither is as large as fits into its shortest recording: powers of two, of sizes that take
        as long to within a tenth the least.
        """
        size = min(one.group_size, self._num_gpus)
        if size <= 1:
            return None
        if one.num_bytes > 0 or one.blocks:
            return self.plan(one.collective, one.num_bytes, size) if one.num_bytes > 0 else None
        fits: list[CollectivePlan] = []
        for exponent in range(_MOST_EXPONENT):
            plan = self.plan(one.collective, 1 << exponent, size)
            if plan is None or plan.alone_ps > one.shortest_ps:
                break
            fits.append(plan)
        return next((plan for plan in fits if plan.alone_ps >= _TELLING * fits[-1].alone_ps), None)

    def plan(self, collective: str, num_bytes: int, size: int) -> CollectivePlan | None:
        """What NCCL would do among so many GPUs; None where it cannot."""
        key = collective, num_bytes, size
        if key not in self._known:
            try:
                kind = graph_collective(collective)
                self._known[key] = self._planner.plan(kind, num_bytes, tuple(range(size)))
            except InputError:
                self._known[key] = None
        return self._known[key]

    def _sms(self, channels: int) -> int:
        return min(round(channels * self._sms_per_channel), self._limit)


def _lasts_ps(plan: CollectivePlan) -> int:
    """How long its data moves alone."""
    return round(plan.volume_bytes / plan.rate_cap_bytes_per_s * PS_PER_S)


def _draw(plan: CollectivePlan) -> float:
    """What its data takes of each GPU's HBM meanwhile, bytes/ps."""
    return plan.rate_cap_bytes_per_s * plan.hbm_bytes_per_byte / PS_PER_S


@dataclass(frozen=True)
class Holding:
    """Communication beside a kernel: ``num_sms`` from ``begin_ps`` to ``end_ps`` after the kernel's start.

    Its data moves from ``moves_ps`` on, ``draw`` bytes/ps of it through HBM; a kernel that begins meanwhile
    waits ``fence_ps`` for its writes.
    """

    begin_ps: int
    end_ps: int
    num_sms: int
    moves_ps: int = FOREVER_PS
    fence_ps: int = 0
    draw: float = 0.0


def time_beside(
    gpu: GpuSpec, demand: Demand, alone_ps: int, holdings: Sequence[Holding], physics: Physics = PHYSICS
) -> int:
    """How long a kernel lasts beside ``holdings``, ps, on ``gpu``.

    SMs are held from when the engine grants them, so communication that begins while the kernel's blocks fill
    the GPU waits until some retire, as in a simulation.
    """
    clock = Clock()
    device = Gpu(
        clock, FixedNetwork(clock), num_sms=gpu.num_sms, hbm_bytes_per_s=gpu.hbm_bytes_per_s,
        execution=Execution if physics == PHYSICS else physics.execution(),
    )  # fmt: skip
    sequence = KernelSequence.of([demand], [alone_ps], [0])
    running: list[Execution] = []
    moving: list[int] = []  # the fence of each holding whose data moves
    for one in sorted(holdings, key=lambda holding: holding.begin_ps):
        clock.process(_communicate(clock, device, one, moving))
    clock.process(_compute(device, sequence, running))
    clock.drain()
    (run,) = running
    return run.ends[0] if run.origin_ps is None else run.origin_ps + alone_ps


def _communicate(clock: Clock, gpu: Gpu, holding: Holding, moving: list[int]) -> Generator[Event, None, None]:
    begin = max(0, holding.begin_ps)
    if begin:
        yield Timeout(clock, begin)
    with gpu.sms.hold(min(gpu.num_sms, holding.num_sms)) as held:
        yield held
        moves = min(max(holding.moves_ps, clock.now), holding.end_ps)
        if moves > clock.now:
            yield Timeout(clock, moves - clock.now)
        if holding.end_ps > moves:
            flow = Flow(clock, OUTSIDE, ())
            moving.append(holding.fence_ps)
            gpu.fence_ps = max(moving)
            gpu.draw_changed(flow, holding.draw, max(holding.draw, _LITTLE))
            yield Timeout(clock, holding.end_ps - moves)
            moving.remove(holding.fence_ps)
            gpu.fence_ps = max(moving, default=0)
            gpu.draw_ended(flow)
            gpu.refresh()


def _compute(gpu: Gpu, sequence: KernelSequence, running: list[Execution]) -> Generator[Event, None, None]:
    run = gpu.execute(sequence)
    running.append(run)
    yield run
