"""``--edit KEY=VALUE``: what a job would take if something were different, edit by edit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group
from rich.text import Text

from simcore.collectives import NcclPlanner
from simcore.graph import Graph
from simcore.hardware import ClusterSpec, Topology
from simcore.records import dataclass
from simcore.report.summary_tables import number_table
from simcore.units import format_time, ps_from_s
from workloads.edits import Applied, EditableJob, apply_edit, split_edits

_SAME = 1e-3  # of the step time: a smaller change is none


@dataclass(frozen=True)
class EditStep:
    """An edit as applied, and the step time before and after it, seconds."""

    applied: Applied
    before_s: float
    after_s: float

    @property
    def called(self) -> str:
        """As it was given: KEY=VALUE, or the key alone."""
        return f"{self.applied.key}={self.applied.value}" if self.applied.value else self.applied.key

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
        return [f"edited, {self.called}: {assumed}" for assumed in self.applied.assumed]


def edit_states(job: EditableJob, texts: Sequence[str]) -> tuple[list[EditableJob], list[Applied]]:
    """``job`` before, between and after edits; and the edits.  InputError for one that cannot be made."""
    states, done = [job], []
    for key, text in split_edits(texts):
        done.append(apply_edit(states[-1], key, text))
        states.append(done[-1].job)
    return states, done


def timed(done: Sequence[Applied], times_s: Sequence[float]) -> tuple[EditStep, ...]:
    """Edits with the step times before the first, between them and after the last, seconds."""
    return tuple(EditStep(edit, *times_s[i : i + 2]) for i, edit in enumerate(done))


def nccl_planner(cluster: ClusterSpec) -> NcclPlanner:
    """NCCL's choices on ``cluster``."""
    return NcclPlanner(Topology(cluster))


def edit_program(job: EditableJob, texts: Sequence[str]) -> tuple[list[EditableJob], list[Applied]]:
    """:func:`edit_states` of a traced job, each as its GPUs run it."""
    states, done = edit_states(job, texts)
    return [state.launched() for state in states], done


def traced_job(
    graph: Graph, cluster: ClusterSpec, kernels: str, fp32_math: str, *, force: bool = False
) -> EditableJob:
    """A traced program on a cluster, ready to be edited."""
    return EditableJob(
        "traced", graph, cluster=cluster, planner=nccl_planner, kernels=kernels, fp32_math=fp32_math,
        force=force,
    )  # fmt: skip


def edit_table(steps: Sequence[EditStep]) -> Group:
    """What each edit changed, and below it what each assumed, for a terminal."""
    table = number_table("what if", ("before", "after", "change", "op executions"))
    lines = []
    for step in steps:
        change = step.after_s / step.before_s - 1.0 if step.before_s else 0.0
        table.add_row(
            step.called, format_time(ps_from_s(step.before_s)), format_time(ps_from_s(step.after_s)),
            f"{change:+.2%}", f"{step.applied.ops_changed:,}",
        )  # fmt: skip
        lines += [f"{step.called}:", *(f"- {one}" for one in (*step.applied.assumed, step.note) if one)]
    return Group(table, Text("\n".join(lines)))
