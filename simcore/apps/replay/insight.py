"""What a replayed step consists of beyond its breakdown: kinds of kernels, SMs in use, its critical path."""

from __future__ import annotations

from dataclasses import dataclass

from simcore.apps.replay.categories import categories, category_times
from simcore.apps.replay.explain import Contribution, explain
from simcore.apps.replay.path import HOST, Causes, critical_path, path_kinds
from simcore.apps.replay.play import Replay
from simcore.apps.replay.split import ReplayedStep
from simcore.apps.replay.utilisation import Utilisation, occupied_share, utilisation
from simcore.units import s_from_ps


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
