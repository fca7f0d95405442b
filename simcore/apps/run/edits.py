"""``--edit KEY=VALUE``: what a job would take if something were different, edit by edit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from simcore.apps.replay.levels import play_level, recorded_cluster
from simcore.collectives import NcclPlanner
from simcore.errors import InputError
from simcore.graph import Graph
from simcore.hardware import ClusterSpec, Topology
from workloads.edits import Applied, EditableJob, apply_edit, split_edits
from workloads.imports import ImportedJob
from workloads.imports.logs.pipeline_job import PipelineOrigin

#: Keys of edits that change how long communication lasts.
_OF_COMMUNICATION = (
    "network", "remove.communication", "remove.nccl", "class.communication", "kernel.nccl", "dp", "tp",
    "hidden", "ffn", "batch.",
)  # fmt: skip

_SAME = 1e-3  # of the step time: a smaller change is none


@dataclass(frozen=True)
class EditStep:
    """An edit as applied, and the step time before and after it, seconds."""

    applied: Applied
    before_s: float
    after_s: float

    @property
    def note(self) -> str:
        """Why nothing has changed, where ops did and the step time did not; "" elsewhere."""
        if not self.applied.ops_changed or abs(self.after_s - self.before_s) > _SAME * self.before_s:
            return ""
        return (
            "the step takes as long: what was edited is not on its critical path (the host or other work is;"
            " replay.py tells the share, host_bound_share with --json)"
        )

    def as_object(self) -> dict[str, Any]:
        """As ``--json`` shows it."""
        note = {"note": self.note} if self.note else {}
        return {
            "key": self.applied.key,
            "value": self.applied.value,
            "assumed": list(self.applied.assumed),
            "ops_changed": self.applied.ops_changed,
            "step_time_before_s": self.before_s,
            "step_time_after_s": self.after_s,
            **note,
        }

    def lines(self) -> list[str]:
        """As a run's assumptions say it."""
        edit = self.applied
        called = f"{edit.key}={edit.value}" if edit.value else edit.key
        return [f"edited, {called}: {assumed}" for assumed in edit.assumed]


def edit_steps(
    job: EditableJob, texts: Sequence[str], step_time_s: Callable[[EditableJob], float]
) -> tuple[EditableJob, tuple[EditStep, ...]]:
    """``job`` after all edits, and each edit with the step time around it.

    InputError for an edit that cannot be made; the edits before it cost no simulation.
    """
    states, done = [job], []
    for key, text in split_edits(texts):
        done.append(apply_edit(states[-1], key, text))
        states.append(done[-1].job)
    times = [step_time_s(state) for state in states] if done else []
    return states[-1], timed(done, times)


def timed(done: Sequence[Applied], times_s: Sequence[float]) -> tuple[EditStep, ...]:
    """Edits with the step times before the first, between them and after the last, seconds."""
    return tuple(EditStep(edit, *times_s[i : i + 2]) for i, edit in enumerate(done))


def edit_recording(
    job: ImportedJob,
    texts: Sequence[str],
    step: int | None,
    level: str = "recorded",
    cluster: str | None = None,
) -> tuple[ImportedJob, tuple[EditStep, ...]]:
    """A recording after edits.  Step time: mean over the recorded steps of the longest span of any rank.

    ``cluster`` is what it was recorded on, where the recording names no GPU, or what a ``level`` simulates.
    InputError for an edit of communication at a ``level`` that simulates it.
    """
    kind = "pipeline_log" if isinstance(job.origin, PipelineOrigin) else "recorded"
    editable = EditableJob(
        kind, job.graph, job.ranks, job.origin, planner=nccl_planner,
        home=lambda num_gpus: recorded_cluster(job, cluster, num_gpus), recorded_world=job.report.world_size,
    )  # fmt: skip

    def imported(state: EditableJob) -> ImportedJob:
        return replace(job, graph=state.graph, ranks=state.ranks, origin=state.origin)

    simulated_on = None if level == "recorded" else cluster

    def step_time_s(state: EditableJob) -> float:
        spans: dict[int, float] = {}
        for row in play_level(imported(state), level, simulated_on).steps(step):
            spans[row.step] = max(spans.get(row.step, 0.0), row.replayed.span)
        return sum(spans.values()) / len(spans)

    for key, _ in split_edits(texts) if level != "recorded" else ():
        if key.startswith(_OF_COMMUNICATION):
            raise InputError(
                f"--edit {key} changes communication, which --level {level} simulates: edit at level"
                " recorded, or name another --cluster"
            )
    edited, steps = edit_steps(editable, texts, step_time_s)
    return imported(edited), steps


def nccl_planner(cluster: ClusterSpec) -> NcclPlanner:
    """NCCL's choices on ``cluster``."""
    return NcclPlanner(Topology(cluster))


def edit_program(job: EditableJob, texts: Sequence[str]) -> tuple[list[EditableJob], list[Applied]]:
    """A traced job before, between and after edits, each as its GPUs run it; and the edits.

    InputError for an edit that cannot be made.
    """
    states, done = [job], []
    for key, text in split_edits(texts):
        done.append(apply_edit(states[-1], key, text))
        states.append(done[-1].job)
    return [state.launched() for state in states], done


def traced_job(graph: Graph, cluster: ClusterSpec, kernels: str, fp32_math: str) -> EditableJob:
    """A traced program on a cluster, ready to be edited."""
    return EditableJob(
        "traced", graph, cluster=cluster, planner=nccl_planner, kernels=kernels, fp32_math=fp32_math
    )


def edit_table(steps: Sequence[EditStep]) -> Group:
    """What each edit changed, and below it what each assumed, for a terminal."""
    table = Table(title="what if")
    table.add_column("edit", no_wrap=True)
    for column in ("before, ms", "after, ms", "change", "op executions"):
        table.add_column(column, justify="right")
    lines = []
    for step in steps:
        edit = step.applied
        called = f"{edit.key}={edit.value}" if edit.value else edit.key
        change = step.after_s / step.before_s - 1.0 if step.before_s else 0.0
        table.add_row(
            called, f"{1e3 * step.before_s:.3f}", f"{1e3 * step.after_s:.3f}", f"{change:+.2%}",
            str(edit.ops_changed),
        )  # fmt: skip
        lines += [f"{called}:", *(f"- {one}" for one in (*edit.assumed, step.note) if one)]
    return Group(table, Text("\n".join(lines)))
