"""A trace's overlapped kernels with what the engine's GPU predicts for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simcore.apps.progress import say
from simcore.apps.replay.alone import shortest_ps
from simcore.apps.replay.levels import recorded_cluster
from simcore.apps.replay.tiles import unrecorded_launch
from simcore.apps.studies.contention.beside import Beside, Channels
from simcore.apps.studies.contention.pairs import OverlappedKernel, Pairs, overlapped_kernels
from simcore.apps.studies.contention.transfers import transfers
from simcore.engine.sequence import Demand
from simcore.errors import InputError
from simcore.hardware import ClusterSpec
from simcore.hardware.specs import GpuSpec
from simcore.interference import LearnedInterference, Neighbours, features
from simcore.interference.features import EXCHANGES
from simcore.interference.train import TrainingRow
from simcore.records import dataclass
from workloads.imports import ImportedJob, import_traces

#: A kernel is a training row when communication was beside it nearly all the time.
_TRAINING_COVERED = 0.9


@dataclass(frozen=True)
class ContentionRow:
    """One recorded kernel beside communication, and what it should have taken.

    ``predicted_ps`` comes from shared SMs and HBM; ``sms`` is what communication held, weighted by how long;
    ``features`` are those of :mod:`simcore.interference`.
    """

    kernel: OverlappedKernel
    beside: Beside
    predicted_ps: int
    sms: float
    features: tuple[float, ...]

    def learned_ps(self, slowdown: float) -> float:
        """Time with a learned slowdown where communication ran beside the kernel."""
        kernel = self.kernel
        free = min(kernel.alone_ps, (1.0 - kernel.covered) * kernel.recorded_ps)
        return free + (kernel.alone_ps - free) * slowdown


@dataclass(frozen=True)
class BesideRow:
    """A row of a table of kernels alone and beside communication, numbered from 0; times in us.

    ``gpu`` is whose profile predicts; ``beside`` is None where a cost model says what the kernel asks for.
    """

    id: int
    trace: str
    gpu: str
    quality: str
    category: str
    alone_us: float
    recorded_us: float
    predicted_us: float
    beside: Beside | None = None

    def as_dict(self) -> dict[str, object]:
        """The row as JSON values."""
        return {name: value for name, value in vars(self).items() if name != "beside"}


@dataclass(frozen=True)
class TraceRows:
    """The rows of one trace set, by what name it is shown, and the pairs that they come from.

    ``transfers`` are the trace's collectives alone and beside compute.
    """

    trace: str
    gpu: GpuSpec
    rows: tuple[ContentionRow, ...]
    pairs: Pairs
    transfers: tuple[dict[str, Any], ...] = ()

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
        rows.append(_row(kernel, start, channels))
        if progress is not None:
            progress(done + 1, len(pairs.kernels))
    return TraceRows(trace, cluster.gpu, tuple(rows), pairs, tuple(transfers(job, channels)))


def read_trace_sets(
    traces: Sequence[Path], cluster: str | None, sms_per_channel: float = 1.0
) -> tuple[list[tuple[TraceRows, ImportedJob, str | None]], list[dict[str, str]]]:
    """The rows of each trace set; those that cannot be compared with the reason.

    ``cluster`` is for traces that name no GPU: of several ("a100-8,h100-8") each for the next one of these,
    the last for all that follow.
    """
    found: list[tuple[TraceRows, ImportedJob, str | None]] = []
    skipped = []
    unnamed = cluster.split(",") if cluster else []
    for path in traces:
        say(f"{path.name}: reading")
        job = import_traces([path])
        named = None
        if unnamed and not any(rank.gpu for rank in job.ranks):
            named = unnamed.pop(0) if len(unnamed) > 1 else unnamed[0]
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


def _row(kernel: OverlappedKernel, start_ps: int, channels: Channels) -> ContentionRow:
    launch = kernel.blocks, kernel.blocks_per_sm, kernel.block
    if not kernel.blocks:
        written = kernel.moved[1]
        launch = unrecorded_launch(kernel.name, kernel.category, kernel.alone_ps, written, channels.gpu)
    beside = Beside(
        kernel.alone_ps,
        start_ps,
        kernel.category,
        *launch,
        kernel.moved,
        kernel.neighbours,
        channels,
        guessed=launch[0] > kernel.blocks,
    )
    weighted = 0.0
    for part in beside.holdings():
        shared = min(part.end_ps, kernel.recorded_ps) - max(part.begin_ps, 0)
        weighted += part.num_sms * max(0, shared) / kernel.recorded_ps
    exchanges = any(one.collective in EXCHANGES for one in kernel.neighbours)
    found = _features(beside.demand(), channels.gpu, Neighbours(round(weighted / kernel.covered), exchanges))
    return ContentionRow(kernel, beside, beside.time_ps(), weighted, tuple(found))


def _features(demand: Demand, gpu: GpuSpec, beside: Neighbours) -> list[float]:
    sm_ps, blocks, blocks_per_sm, hbm_bytes, fixed_ps, *_ = demand
    return features(
        sm_ps=sm_ps, hbm_ps=hbm_bytes / gpu.hbm_bytes_per_s * 1e12, fixed_ps=fixed_ps, blocks=blocks,
        blocks_per_sm=blocks_per_sm, num_sms=gpu.num_sms, beside=beside,
    )  # fmt: skip


def learned_times(rows: TraceRows, model: LearnedInterference) -> list[float]:
    """Times of the rows as ``model`` tells them, ps."""
    return [row.learned_ps(model.of_features(row.features)) for row in rows.rows]
