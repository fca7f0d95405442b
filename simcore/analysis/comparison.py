"""Two runs side by side: how much faster, and which ops and stages make the difference.

Times are means over the ranks of each run, so that runs of different numbers of GPUs compare.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from simcore.analysis.breakdown import Breakdown
from simcore.analysis.critical_path import CriticalPath, critical_path
from simcore.analysis.step import StepAnalysis, analyse
from simcore.analysis.totals import Key, Total
from simcore.records import dataclass
from simcore.timeline.info import RunInfo
from simcore.timeline.reader import Timeline

#: What two runs may differ in without being told: names of things, sources of numbers, and results.
_FACTS = ("workload", "software", "cluster", "settings", "network", "seed", "peak_math", "commit")
_NO_DIFFERENCE = (
    "sources", "command", "versions", "steps", "model_flops_per_step", "model_flops_full_per_step",
)  # fmt: skip


@dataclass(frozen=True)
class OpDifference:
    """An op or collective of both runs: calls and ps per rank, in each run (0 where it does not occur)."""

    name: str
    calls: tuple[float, float]
    time_ps: tuple[float, float]

    @property
    def difference_ps(self) -> float:
        """Second minus first."""
        return self.time_ps[1] - self.time_ps[0]


@dataclass(frozen=True)
class PathDifference:
    """Ops of one name on one stream on the critical path of each run: work, and what they waited, ps."""

    name: str
    stream: str
    work_ps: tuple[int, int]
    wait_ps: tuple[int, int]

    @property
    def difference_ps(self) -> int:
        """Second minus first."""
        return self.work_ps[1] - self.work_ps[0] + self.wait_ps[1] - self.wait_ps[0]


@dataclass(frozen=True)
class StepWork:
    """What a step does: tokens and model flops (causal attention once) of all GPUs; 0 where not known."""

    tokens: int
    flops: int
    gpus: int


@dataclass(frozen=True)
class Comparison:
    """Two analysed runs.  ``ops`` are sorted by the size of their difference, the largest first.

    ``path`` explains the difference of the step times: its differences add up to that, the largest first.

    ``inputs`` are the facts that differ, by dotted key: ``cluster.nic_bytes_per_s: (5e10, 2.5e10)``.
    ``stages`` holds the breakdowns of the stages that both runs have.  ``work`` is what each step does: runs
    of unlike work are compared by the token, and by the GPU.
    """

    runs: tuple[StepAnalysis, StepAnalysis]
    inputs: dict[str, tuple[Any, Any]]
    ops: tuple[OpDifference, ...]
    stages: dict[int, tuple[Breakdown, Breakdown]]
    path: tuple[PathDifference, ...] = ()
    work: tuple[StepWork, StepWork] = (StepWork(0, 0, 1), StepWork(0, 0, 1))

    @property
    def speedup(self) -> float:
        """Step time of the first run over that of the second: above 1, the second is faster."""
        first, second = (run.step_ps for run in self.runs)
        return first / second if second else 0.0

    def speedup_per(self, what: str) -> float:
        """``tokens`` or ``flops`` per second of the second run over those of the first; 0 if not known."""
        first, second = (getattr(work, what) for work in self.work)
        return self.speedup * second / first if first and second else 0.0

    @property
    def same_work(self) -> bool:
        """Whether both do the same with as many GPUs, or it is not known what they do."""
        return self.work[0] == self.work[1]

    @property
    def time_scale(self) -> tuple[float, float]:
        """What makes ps of one GPU in each run ps of all GPUs for one token; 1 where works are the same."""
        if self.same_work or not all(work.tokens for work in self.work):
            return 1.0, 1.0
        first, second = (work.gpus / work.tokens for work in self.work)
        return first, second

    def gpu_time_per_token(self) -> tuple[dict[str, float], dict[str, float]] | None:
        """GPU time for a token of each run by part of the step, ps; None where tokens are not known."""
        if not all(work.tokens for work in self.work):
            return None
        first, second = (
            {name: part * work.gpus / work.tokens for name, part in run.breakdown.parts().items()}
            for run, work in zip(self.runs, self.work, strict=True)
        )
        return first, second


def compare_runs(first: Timeline, second: Timeline) -> Comparison:
    """Compare two runs, the second against the first, their critical paths too."""
    comparison = compare((first.info, analyse(first)), (second.info, analyse(second)))
    return replace(comparison, path=_path_differences(critical_path(first), critical_path(second)))


def compare(first: tuple[RunInfo, StepAnalysis], second: tuple[RunInfo, StepAnalysis]) -> Comparison:
    """Compare two analysed runs, the second against the first; without critical paths."""
    (info_a, run_a), (info_b, run_b) = first, second
    ops: list[OpDifference] = []
    for kind in ("kernels", "collectives"):
        ops += _op_differences(getattr(run_a, kind), run_a.num_ranks, getattr(run_b, kind), run_b.num_ranks)
    stages_a, stages_b = run_a.stages(), run_b.stages()
    return Comparison(
        runs=(run_a, run_b),
        inputs=_differing(_facts(info_a), _facts(info_b)),
        ops=tuple(sorted(ops, key=lambda op: (-abs(op.difference_ps), op.name))),
        stages={stage: (stages_a[stage], stages_b[stage]) for stage in stages_a if stage in stages_b},
        work=(_work(info_a), _work(info_b)),
    )


def _work(info: RunInfo) -> StepWork:
    return StepWork(info.workload.tokens_per_step, info.flops.model_causal, info.workload.world_size)


def _op_differences(
    first: Sequence[tuple[Key, Total]], ranks_a: int, second: Sequence[tuple[Key, Total]], ranks_b: int
) -> list[OpDifference]:
    a, b = dict(first), dict(second)
    nothing = Total()
    found = []
    for key in dict.fromkeys([*a, *b]):
        of_a, of_b = a.get(key, nothing), b.get(key, nothing)
        found.append(
            OpDifference(
                " ".join(part for part in key if part),
                (of_a.count / ranks_a, of_b.count / ranks_b),
                (of_a.time_ps / ranks_a, of_b.time_ps / ranks_b),
            )
        )
    return found


def _path_differences(first: CriticalPath, second: CriticalPath) -> tuple[PathDifference, ...]:
    """By op and stream; an op with one stream in each run is one, whatever they call that stream."""
    streams = [_streams(path) for path in (first, second)]
    sides: list[dict[tuple[str, str], list[int]]] = [{}, {}]
    for side, path in enumerate((first, second)):
        for (name, stream), times in path.by_op.items():
            known = [of_name.get(name, []) for of_name in streams]
            alike = all(len(found) == 1 for found in known)
            both = " / ".join(dict.fromkeys(found[0] for found in known)) if alike else stream
            sides[side][name, both] = times
    found = []
    for key in dict.fromkeys([*sides[0], *sides[1]]):
        (work_a, wait_a), (work_b, wait_b) = (times.get(key, [0, 0]) for times in sides)
        if (work_a, wait_a) != (work_b, wait_b):
            found.append(PathDifference(*key, (work_a, work_b), (wait_a, wait_b)))
    return tuple(sorted(found, key=lambda row: (-abs(row.difference_ps), row.name, row.stream)))


def _streams(path: CriticalPath) -> dict[str, list[str]]:
    """The streams of each op on the path."""
    found: dict[str, list[str]] = {}
    for name, stream in path.by_op:
        found.setdefault(name, []).append(stream)
    return found


def _facts(info: RunInfo) -> dict[str, Any]:
    content = info.model_dump(mode="json", include=set(_FACTS))
    return dict(_flattened(content))


def _flattened(content: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in content.items():
        if key in _NO_DIFFERENCE:
            continue
        if isinstance(value, Mapping):
            found += _flattened(value, f"{prefix}{key}.")
        else:
            found.append((prefix + key, value))
    return found


def _differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    keys = dict.fromkeys([*a, *b])
    found = {key: (a.get(key), b.get(key)) for key in keys if a.get(key) != b.get(key)}
    # A setting is told once, by what it changed.
    told = {f"settings.{key.removeprefix('cluster.') if '.gpu.' in key else key}" for key in found}
    return {key: values for key, values in found.items() if key not in told}
