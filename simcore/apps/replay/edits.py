"""``--edit KEY=VALUE`` of a recording: the step time around each edit is that of its replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simcore.apps.replay.levels import play_level, recorded_cluster
from simcore.apps.run.edits import EditStep, edit_states, nccl_planner, timed
from simcore.errors import InputError
from workloads.edits import EditableJob, split_edits
from workloads.imports import ImportedJob
from workloads.imports.logs.pipeline_job import PipelineOrigin

#: Keys of edits that change how long communication lasts.
_OF_COMMUNICATION = (
    "network", "remove.communication", "remove.nccl", "class.communication", "kernel.nccl", "dp", "tp",
    "hidden", "ffn", "batch.",
)  # fmt: skip


def edit_recording(
    job: ImportedJob,
    texts: Sequence[str],
    step: int | None,
    level: str = "recorded",
    cluster: str | None = None,
    *,
    force: bool = False,
) -> tuple[ImportedJob, tuple[EditStep, ...]]:
    """A recording after edits.  Step time: mean over the recorded steps of the longest span of any rank.

    ``cluster`` is what it was recorded on, where the recording names no GPU, or what a ``level`` simulates;
    with ``force`` it, and clusters that edits name, may have numbers that no hardware has.
    InputError for an edit of communication at a ``level`` that simulates it.
    """
    kind = "pipeline_log" if isinstance(job.origin, PipelineOrigin) else "recorded"
    editable = EditableJob(
        kind, job.graph, job.ranks, job.origin, planner=nccl_planner,
        home=lambda num_gpus: recorded_cluster(job, cluster, num_gpus, force=force),
        recorded_world=job.report.world_size, force=force,
    )  # fmt: skip

    def imported(state: EditableJob) -> ImportedJob:
        same = [rank.number for rank in state.ranks] == [rank.number for rank in job.ranks]
        return replace(
            job, graph=state.graph, ranks=state.ranks, origin=state.origin, unedited=job.ranks if same else ()
        )

    simulated_on = None if level == "recorded" else cluster

    def step_time_s(state: EditableJob) -> float:
        spans: dict[int, float] = {}
        for row in play_level(imported(state), level, simulated_on, force=force).steps(step):
            spans[row.step] = max(spans.get(row.step, 0.0), row.replayed.span)
        return sum(spans.values()) / len(spans)

    for key, _ in split_edits(texts) if level != "recorded" else ():
        if key.startswith(_OF_COMMUNICATION):
            raise InputError(
                f"--edit {key} changes communication, which --level {level} simulates: edit at level"
                " recorded, or name another --cluster"
            )
    states, done = edit_states(editable, texts)  # what cannot be edited costs no simulation
    times = [step_time_s(state) for state in states] if done else []
    return imported(states[-1]), timed(done, times)
