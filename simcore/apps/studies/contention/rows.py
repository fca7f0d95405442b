"""A trace's overlapped kernels with what the engine's GPU predicts for each."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from simpy.events import Event, Timeout

from simcore.apps.progress import say
from simcore.apps.replay.alone import demand_alone, shortest_ps
from simcore.apps.replay.levels import recorded_cluster
from simcore.apps.studies.contention.pairs import OverlappedKernel, Pairs, overlapped_kernels
from simcore.clock import Clock
from simcore.collectives import NcclPlanner
from simcore.engine.execution import Execution
from simcore.engine.gpu import Gpu
from simcore.engine.sequence import Demand, KernelSequence
from simcore.errors import InputError
from simcore.hardware import ClusterSpec, Topology
from simcore.hardware.specs import GpuSpec
from simcore.interference import LearnedInterference, Neighbours, features
from simcore.interference.features import EXCHANGES
from simcore.interference.train import TrainingRow
from simcore.network.fluid import FixedNetwork
from workloads.imports import ImportedJob, import_traces
from workloads.imports.collective_names import graph_collective

FOREVER_PS = 1 << 56  # communication that outlives the kernel holds its SMs as long as the kernel runs
#: Blocks that are left of an exchange beside a kernel.  Each serves a peer or two and ends when their data is
#: through, so that one that lasts waits for its last peer: beside SendRecv of 8 and 24 blocks grids of 96 and
#: 320 blocks run undisturbed on an A100, where 8 SMs less would force another wave (docs/contention.md).
_LAST_PEER = 1
#: A kernel is a training row when communication was beside it nearly all the time.
_TRAINING_COVERED = 0.9


@dataclass(frozen=True)
class ContentionRow:
    """One recorded kernel beside communication, and what it should have taken.

    ``predicted_ps`` comes from shared SMs and HBM; ``sms`` is what communication held, weighted by how long;
    ``features`` are those of :mod:`simcore.interference`.
    """

    kernel: OverlappedKernel
    predicted_ps: int
    sms: float
    exchanges: bool
    features: tuple[float, ...]

    def learned_ps(self, slowdown: float) -> float:
        """Time with a learned slowdown where communication ran beside the kernel."""
        kernel = self.kernel
        free = min(kernel.alone_ps, (1.0 - kernel.covered) * kernel.recorded_ps)
        return free + (kernel.alone_ps - free) * slowdown


@dataclass(frozen=True)
class BesideRow:
    """A row of a table of kernels alone and beside communication, numbered from 0; times in us."""

    id: int
    trace: str
    quality: str
    category: str
    alone_us: float
    recorded_us: float
    predicted_us: float

    def as_dict(self) -> dict[str, object]:
        """The row as JSON values."""
        return dict(vars(self))


@dataclass(frozen=True)
class TraceRows:
    """The rows of one trace set, by what name it is shown, and the pairs that they come from."""

    trace: str
    gpu: GpuSpec
    rows: tuple[ContentionRow, ...]
    pairs: Pairs

    def training_rows(self) -> list[TrainingRow]:
        """What a learned predictor is trained on."""
        return [
            TrainingRow(self.trace, row.kernel.name, row.features, row.kernel.slowdown)
            for row in self.rows
            if row.kernel.covered >= _TRAINING_COVERED
        ]


def trace_rows(
    trace: str,
    job: ImportedJob,
    cluster: ClusterSpec,
    progress: Callable[[int, int], None] | None = None,
    sms_per_channel: float = 1.0,
) -> TraceRows:
    """Predict every overlapped kernel of ``job`` on the GPU of ``cluster``.

    Channels that the trace does not tell are those that NCCL would use on the cluster; each holds
    ``sms_per_channel`` SMs.
    ``progress`` gets (rows done, rows in all).
    """
    pairs = overlapped_kernels(job)
    undisturbed = [alone for _, alone in pairs.noise] + [kernel.alone_ps for kernel in pairs.kernels]
    start = shortest_ps(np.array(undisturbed, dtype=np.int64), cluster.gpu)
    channels = Channels(cluster, sms_per_channel)
    rows = []
    for done, kernel in enumerate(pairs.kernels):
        rows.append(_row(kernel, start, cluster.gpu, channels))
        if progress is not None:
            progress(done + 1, len(pairs.kernels))
    return TraceRows(trace, cluster.gpu, tuple(rows), pairs)


def read_trace_sets(
    traces: Sequence[Path], cluster: str | None, sms_per_channel: float = 1.0
) -> tuple[list[tuple[TraceRows, ImportedJob, str | None]], list[dict[str, str]]]:
    """The rows of each trace set; those that cannot be compared with the reason."""
    found: list[tuple[TraceRows, ImportedJob, str | None]] = []
    skipped = []
    for path in traces:
        say(f"{path.name}: reading")
        job = import_traces([path])
        named = None if any(rank.gpu for rank in job.ranks) else cluster
        try:
            spec = recorded_cluster(job, named, max((rank.number for rank in job.ranks), default=0) + 1)
        except InputError as error:
            skipped.append({"trace": path.name, "reason": str(error)})
            continue
        name = path.name.split(".")[0]
        rows = trace_rows(name, job, spec, _progress(path.name), sms_per_channel)
        if rows.rows:
            found.append((rows, job, named))
        else:
            skipped.append(
                {"trace": path.name, "reason": "no kernel beside communication was seen alone too"}
            )
    return found, skipped


def _progress(name: str) -> Callable[[int, int], None]:
    last = -1

    def report(done: int, total: int) -> None:
        nonlocal last
        percent = 100 * done // total
        if percent // 25 != last // 25:
            last = percent
            say(f"{name}: {percent}% of {total} kernels")

    return report


class Channels:
    """SMs of a recorded communication kernel: its thread blocks, else the channels that NCCL would use, each
    on so many SMs.
    """

    def __init__(self, cluster: ClusterSpec, sms_per_channel: float) -> None:
        self._sms_per_channel = sms_per_channel
        self._planner = NcclPlanner(Topology(cluster))
        self._num_gpus = cluster.num_gpus
        self._limit = cluster.gpu.num_sms - 1
        self._known: dict[tuple[str, int, int], int] = {}

    def of(self, collective: str, blocks: int, num_bytes: int, group_size: int) -> int:
        """SMs that a communication kernel holds; 0 where nothing is known of it."""
        if blocks:
            return self._sms(min(blocks, _LAST_PEER) if collective in EXCHANGES else blocks)
        size = min(group_size, self._num_gpus)
        if size < 2 or num_bytes <= 0:
            return 0
        key = collective, num_bytes, size
        found = self._known.get(key)
        if found is None:
            try:
                plan = self._planner.plan(graph_collective(collective), num_bytes, tuple(range(size)))
                found = plan.channels
            except InputError:
                found = 0
            self._known[key] = found
        return self._sms(found)

    def _sms(self, channels: int) -> int:
        return min(round(channels * self._sms_per_channel), self._limit)


def _row(kernel: OverlappedKernel, start_ps: int, gpu: GpuSpec, channels: Channels) -> ContentionRow:
    demand = demand_alone(
        kernel.alone_ps, start_ps, kernel.category, kernel.blocks, kernel.blocks_per_sm, gpu, kernel.block
    )
    holdings, weighted, exchanges = [], 0.0, False
    for neighbour in kernel.neighbours:
        sms = channels.of(neighbour.collective, neighbour.blocks, neighbour.num_bytes, neighbour.group_size)
        lasts = neighbour.end_ps >= kernel.recorded_ps
        holdings.append(Holding(neighbour.begin_ps, FOREVER_PS if lasts else neighbour.end_ps, sms))
        shared = min(neighbour.end_ps, kernel.recorded_ps) - max(neighbour.begin_ps, 0)
        weighted += sms * shared / kernel.recorded_ps
        exchanges = exchanges or neighbour.collective in EXCHANGES
    predicted = time_beside(gpu, demand, kernel.alone_ps, holdings)
    sms = round(weighted / kernel.covered)
    return ContentionRow(
        kernel, predicted, weighted, exchanges, tuple(_features(demand, gpu, Neighbours(sms, exchanges)))
    )


def _features(demand: Demand, gpu: GpuSpec, beside: Neighbours) -> list[float]:
    sm_ps, blocks, blocks_per_sm, hbm_bytes, fixed_ps, _, _ = demand
    return features(
        sm_ps=sm_ps, hbm_ps=hbm_bytes / gpu.hbm_bytes_per_s * 1e12, fixed_ps=fixed_ps, blocks=blocks,
        blocks_per_sm=blocks_per_sm, num_sms=gpu.num_sms, beside=beside,
    )  # fmt: skip


def learned_times(rows: TraceRows, model: LearnedInterference) -> list[float]:
    """Times of the rows as ``model`` tells them, ps."""
    return [row.learned_ps(model.of_features(row.features)) for row in rows.rows]


@dataclass(frozen=True)
class Holding:
    """Communication beside a kernel: ``num_sms`` from ``begin_ps`` to ``end_ps`` after the kernel's start."""

    begin_ps: int
    end_ps: int
    num_sms: int


def time_beside(gpu: GpuSpec, demand: Demand, alone_ps: int, holdings: Sequence[Holding]) -> int:
    """How long a kernel lasts beside ``holdings``, ps, on ``gpu``.

    SMs are held from when the engine grants them, so communication that begins while the kernel's blocks fill
    the GPU waits until some retire, as in a simulation.
    """
    clock = Clock()
    device = Gpu(clock, FixedNetwork(clock), num_sms=gpu.num_sms, hbm_bytes_per_s=gpu.hbm_bytes_per_s)
    sequence = KernelSequence.of([demand], np.array([alone_ps]), np.zeros(1, dtype=np.int64))
    running: list[Execution] = []
    for one in sorted(holdings, key=lambda holding: holding.begin_ps):
        clock.process(_communicate(clock, device, one))
    clock.process(_compute(device, sequence, running))
    clock.drain()
    (run,) = running
    return run.ends[0] if run.origin_ps is None else run.origin_ps + alone_ps


def _communicate(clock: Clock, gpu: Gpu, holding: Holding) -> Generator[Event, None, None]:
    begin = max(0, holding.begin_ps)
    if begin:
        yield Timeout(clock, begin)
    with gpu.sms.hold(min(gpu.num_sms, holding.num_sms)) as held:
        yield held
        if holding.end_ps > clock.now:
            yield Timeout(clock, holding.end_ps - clock.now)


def _compute(gpu: Gpu, sequence: KernelSequence, running: list[Execution]) -> Generator[Event, None, None]:
    run = gpu.execute(sequence)
    running.append(run)
    yield run
