"""``--edit KEY=VALUE``: what a job would take if something were different, edit by edit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.table import Table

from simcore.collectives import NcclPlanner
from simcore.graph import Graph
from simcore.hardware import ClusterSpec, Topology
from simcore.replay import replay_job
from workloads.edits import Applied, EditableJob, apply_edit, split_edits
from workloads.imports import ImportedJob


@dataclass(frozen=True)
class EditStep:
    """An edit as applied, and the step time before and after it, seconds."""

    applied: Applied
    before_s: float
    after_s: float

    def as_object(self) -> dict[str, Any]:
        """As ``--json`` shows it."""
        return {
            "key": self.applied.key,
            "value": self.applied.value,
            "assumed": list(self.applied.assumed),
            "ops_changed": self.applied.ops_changed,
            "step_time_before_s": self.before_s,
            "step_time_after_s": self.after_s,
        }


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
    steps = (EditStep(edit, *times[i : i + 2]) for i, edit in enumerate(done))
    return states[-1], tuple(steps)


def edit_recording(
    job: ImportedJob, texts: Sequence[str], step: int | None
) -> tuple[ImportedJob, tuple[EditStep, ...]]:
    """A recording after edits.  Step time: mean over the recorded steps of the longest span of any rank."""
    kind = "recorded" if job.origin is None else "pipeline_log"
    editable = EditableJob(kind, job.graph, job.ranks, job.origin, planner=nccl_planner)

    def imported(state: EditableJob) -> ImportedJob:
        return replace(job, graph=state.graph, ranks=state.ranks, origin=state.origin)

    def step_time_s(state: EditableJob) -> float:
        spans: dict[int, float] = {}
        for row in replay_job(imported(state), step):
            spans[row.step] = max(spans.get(row.step, 0.0), row.replayed.span)
        return sum(spans.values()) / len(spans)

    edited, steps = edit_steps(editable, texts, step_time_s)
    return imported(edited), steps


def nccl_planner(cluster: ClusterSpec) -> NcclPlanner:
    """NCCL's choices on ``cluster``."""
    return NcclPlanner(Topology(cluster))


def traced_job(graph: Graph, cluster: ClusterSpec, kernels: str, fp32_math: str) -> EditableJob:
    """A traced program on a cluster, ready to be edited."""
    return EditableJob(
        "traced", graph, cluster=cluster, planner=nccl_planner, kernels=kernels, fp32_math=fp32_math
    )


def edit_table(steps: Sequence[EditStep]) -> Table:
    """What each edit changed, for a terminal."""
    table = Table(title="what if")
    table.add_column("edit")
    for column in ("before, ms", "after, ms", "change", "op executions"):
        table.add_column(column, justify="right")
    table.add_column("assumed")
    for step in steps:
        edit = step.applied
        change = step.after_s / step.before_s - 1.0 if step.before_s else 0.0
        table.add_row(
            f"{edit.key}={edit.value}" if edit.value else edit.key,
            f"{1e3 * step.before_s:.3f}", f"{1e3 * step.after_s:.3f}", f"{change:+.2%}",
            str(edit.ops_changed), "\n".join(edit.assumed),
        )  # fmt: skip
    return table
