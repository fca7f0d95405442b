"""From a measured run and a job to a diagnosis: expect, compare, split by cause, look for what to check."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from simcore.apps.diagnose.causes import (
    PRODUCTS,
    Cause,
    Moments,
    causes,
    expected_moments,
    recorded_ranks,
)
from simcore.apps.diagnose.checks import Check, Checks
from simcore.apps.diagnose.measured import MeasuredStep, measured_by_log
from simcore.apps.progress import StageTimer
from simcore.apps.run.simulation import run_scenario
from simcore.errors import InputError
from simcore.records import dataclass
from simcore.timeline import RunInfo, Timeline
from simcore.units import PS_PER_S, format_time

if TYPE_CHECKING:
    from simcore.apps.run.scenario import Scenario
    from workloads.imports.logs.training import TrainingLog


#: By how many times the products of a step may differ: compilers fuse and split some.
_UNLIKE = 1.5


@dataclass(frozen=True)
class Diagnosis:
    """A measured run, what was expected (``info``), and why they differ.

    ``causes`` add up to ``gap_s`` and are known of recordings only; ``checks`` are what to look at.
    """

    measured: MeasuredStep
    info: RunInfo
    causes: tuple[Cause, ...] = ()
    checks: tuple[Check, ...] = ()

    @property
    def expected_s(self) -> float:
        """The simulated step."""
        return self.info.step_ps / PS_PER_S

    @property
    def gap_s(self) -> float:
        """Measured minus expected."""
        return self.measured.step_s - self.expected_s

    @property
    def verdict(self) -> Literal["inside", "slower", "faster"]:
        """Where the measured step lies, seen from the band."""
        band = self.info.band
        low, high = (band.low_s, band.high_s) if band is not None else (self.expected_s, self.expected_s)
        return (
            "slower" if self.measured.step_s > high else "faster" if self.measured.step_s < low else "inside"
        )


def diagnosed(
    files: Sequence[Path],
    log: TrainingLog | None,
    scenario: Scenario,
    stages: StageTimer,
    *,
    step: int | None = None,
    with_checks: bool = True,
) -> Diagnosis:
    """``scenario`` is the job that ran; ``step``: of recordings, None for all.

    Errors: InputError where log or recordings do not fit the job, and as :func:`run_scenario`, but a job that
    ran is taken to fit its GPUs.
    """
    ran = scenario.with_settings({"memory.check": "warn"})
    with tempfile.TemporaryDirectory(prefix="simcore-diagnose-") as kept:
        done = run_scenario(ran, Path(kept) / "run", stages, perfetto=False)
        timeline = Timeline.open(Path(kept) / "run")
        if log is None:
            measured, split = _by_recordings(files, timeline, stages, step)
        else:
            measured, split = measured_by_log(log, done.info), ()
    found = Diagnosis(measured, done.info, split)
    if not with_checks:
        return found
    looking = Checks(scenario, found.expected_s)
    with stages.stage("simulating other choices") as update:
        checks = looking.choices(update)
    if log is not None and found.verdict == "slower":
        with stages.stage("simulating faults") as update:
            checks += Checks(ran, found.expected_s).faults(found.gap_s, update)
    checks += _of_log(measured)
    checks.sort(key=lambda check: (-round(check.gain_s, 6), not check.certain))
    return Diagnosis(measured, done.info, split, tuple(checks))


def _by_recordings(
    files: Sequence[Path], timeline: Timeline, stages: StageTimer, step: int | None
) -> tuple[MeasuredStep, tuple[Cause, ...]]:
    """Steps of recordings, and why they differ from the expected one."""
    from workloads.imports import import_traces

    with stages.stage("reading traces"):
        job = import_traces(list(files))
    if not job.ranks:
        raise InputError(f"no recorded step in what is given: {'; '.join(job.report.missing)}")
    world, known = timeline.info.workload.world_size, job.report.world_size
    if known > 0 and known != world:
        raise InputError(f"the recording is of a job on {known:,} GPUs, the job described runs on {world:,}")
    ranks = [rank.number for rank in job.ranks]
    if max(ranks) >= world:
        raise InputError(f"the recording has rank {max(ranks)}, the job described has ranks 0 to {world - 1}")
    recorded, count = recorded_ranks(job.ranks, step)
    expected = expected_moments(timeline, ranks)
    split = causes(recorded, expected)
    shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    lines = (
        f"{files[0]}{' and others' if len(files) > 1 else ''}: rank{'s' if len(ranks) > 1 else ''} {shown},"
        f" {count} step{'s' if count > 1 else ''}, {job.ranks[0].gpu or 'GPU not recorded'}",
        f"step {format_time(recorded.step_s * PS_PER_S)} (mean)",
    )
    gpu = str(timeline.info.cluster.get("gpu", {}).get("name", ""))
    doubts = (*_other_gpu(job.ranks[0].gpu, gpu), *_other_job(recorded, expected))
    return MeasuredStep(recorded.step_s, lines, doubts), tuple(split)


def _other_gpu(recorded: str, described: str) -> list[str]:
    """Said where a recording's GPU has not one word in common with the cluster's."""
    words = {word for word in recorded.upper().replace("-", " ").split() if any(c.isdigit() for c in word)}
    alike = not words or any(
        described.upper().startswith(word) or word in described.upper() for word in words
    )
    return [] if alike else [f"recorded on {recorded}, expected of {described}: name its --cluster"]


def _other_job(recorded: Moments, expected: Moments) -> list[str]:
    """Said where a step launches so many more or fewer products that it can hardly be the job's."""
    found, known = recorded.launches[PRODUCTS], expected.launches[PRODUCTS]
    if min(found, known) * _UNLIKE > max(found, known):
        return []
    return [
        f"the recording launches {found:,.0f} matrix products a step, the job described {known:,.0f}:"
        " is it the same model, batch and layout?"
    ]


def _of_log(measured: MeasuredStep) -> list[Check]:
    """What the log itself tells of its steps: slow ones, timers of parts, memory."""
    found = []
    if measured.lost_s > 0:
        advice = "saving checkpoints, evaluation, garbage collection (--manual-gc) in the slowest steps"
        found.append(Check("steps that take 1.5 times the median", measured.lost_s, advice, certain=True))
    timers = measured.log.timers if measured.log is not None else {}
    _, slowest = timers.get("batch-generator", (0.0, 0.0))
    if slowest > 0.01 * measured.step_s:
        advice = "the slowest rank waits so long for its batches: --num-workers, storage, tokenizing ahead"
        found.append(Check("batch-generator", slowest, advice, certain=True))
    least, most = timers.get("forward-compute", (0.0, 0.0))
    if most - least > 0.02 * measured.step_s:
        advice = "forward passes differ so much between ranks: a slow GPU, uneven stages or data"
        found.append(Check("forward-compute by rank", most - least, advice))
    return found
