"""What a replayed step consists of beyond its breakdown: kinds of kernels, SMs in use, its critical path."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from simcore.apps.replay.categories import categories, category_times
from simcore.apps.replay.explain import Contribution, explain
from simcore.apps.replay.path import HOST, Causes, critical_path, path_kinds
from simcore.apps.replay.play import Replay, ReplayedStep
from simcore.graph.ops import IntArray
from simcore.records import dataclass
from simcore.units import PS_PER_MS, s_from_ps
from workloads.imports.recorded import RecordedOps


@dataclass(frozen=True)
class StepInsight:
    """Of one :class:`ReplayedStep`; pairs are (recorded, replayed), times in seconds.

    ``kernel_time`` sums the ops of each category.  ``sms`` is None where thread blocks or the GPU's size are
    not recorded.  ``path`` is the time on the replayed critical path by kind, ``host_bound_share`` the part
    of the span in which the path is at the host.  ``contributions`` explain the difference of the spans.
    """

    kernel_time: tuple[dict[str, float], dict[str, float]]
    sms: tuple[Utilisation, Utilisation] | None
    path: dict[str, float]
    contributions: list[Contribution]

    @property
    def host_bound_share(self) -> float:
        """Share of the span in which the critical path waits for the host."""
        span = sum(self.path.values())
        return self.path.get(HOST, 0.0) / span if span else 0.0


def step_insights(replay: Replay, steps: list[ReplayedStep]) -> list[StepInsight]:
    """The insight of each of ``steps``."""
    job, found = replay.job, []
    causes = [Causes(job.graph, index, rank) for index, rank in enumerate(job.ranks)]
    kinds = [categories(rank.recorded) for rank in job.ranks]
    for step in steps:
        index, members = step.index, step.members
        rank = job.ranks[index]
        times = (
            (rank.recorded.start_ps, rank.recorded.end_ps),
            (replay.start_ps[index], replay.end_ps[index]),
        )
        before, after = (category_times(kinds[index], members, *pair) for pair in times)
        sms = None
        if rank.num_sms and rank.recorded.blocks[members].any():
            share = occupied_share(rank.recorded, rank.num_sms)
            recorded, replayed = (utilisation(share, members, *pair) for pair in times)
            sms = recorded, replayed
        path = critical_path(causes[index], members, *times[1])
        seconds = {kind: s_from_ps(time) for kind, time in path_kinds(path, rank).items()}
        found.append(StepInsight((before, after), sms, seconds, explain(rank, members, path)))
    return found


FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Utilisation:
    """Share of the SMs that hold a thread block, 0..1.

    ``series[k]`` is the mean over the ``k``-th millisecond of the step (the last may be shorter), ``mean``
    that over the step, ``peak`` the largest of the series.
    """

    mean: float
    peak: float
    series: FloatArray


def occupied_share(ops: RecordedOps, num_sms: int) -> FloatArray:
    """Per op the share of SMs that its blocks occupy while it runs, averaged over its waves.

    A full wave (``num_sms x blocks_per_sm`` blocks) occupies every SM.  The blocks of the last one go to one
    SM each as long as there are SMs without any.  0 for ops whose blocks are not recorded.
    """
    known = (ops.blocks > 0) & (ops.blocks_per_sm > 0) & ops.is_kernel
    in_wave = num_sms * np.where(known, ops.blocks_per_sm, 1.0)
    full = np.floor(ops.blocks / in_wave)
    rest = ops.blocks - full * in_wave
    last = np.minimum(rest, num_sms) / num_sms
    waves = np.maximum(full + (rest > 0), 1.0)
    return np.where(known, (full + last) / waves, 0.0)


def utilisation(share: FloatArray, members: IntArray, start_ps: IntArray, end_ps: IntArray) -> Utilisation:
    """Utilisation in a step that consists of ``members``; kernels that run together add up, to 1 at most."""
    start, end, share = start_ps[members], end_ps[members], share[members]
    begin, stop = int(start.min()), int(end.max())
    if stop == begin:
        return Utilisation(0.0, 0.0, np.zeros(0))
    time = np.concatenate([start, end])
    order = np.argsort(time, kind="stable")
    level = np.cumsum(np.concatenate([share, -share])[order]).clip(0.0, 1.0)
    time = time[order] - begin
    # The integral is piecewise linear: read it off at the edges of the bins.
    area = np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(time))])
    edges = np.append(np.arange(0, stop - begin, PS_PER_MS), stop - begin)
    at_edges = np.interp(edges, time, area)
    series = np.diff(at_edges) / np.diff(edges)
    return Utilisation(float(at_edges[-1] / (stop - begin)), float(series.max()), series)
