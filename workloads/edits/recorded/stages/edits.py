"""``pp`` and ``schedule`` of recordings."""

from __future__ import annotations

from functools import cache

from simcore.errors import InputError
from simcore.graph import Action, gpipe, interleaved_one_f_one_b, validate_schedule
from simcore.graph.schedules import Schedule
from workloads.edits.job import EditableJob, Edited, plays
from workloads.edits.kernels.edits import edited_kernels
from workloads.edits.recorded.pipeline_log import LOGGED_SCHEDULE, WantedSchedule
from workloads.edits.recorded.stages.layers import Layers
from workloads.edits.recorded.stages.pipelines import Recorded, recorded_pipelines
from workloads.edits.recorded.stages.plan import PipelineRewrite, Wanted
from workloads.edits.recorded.stages.rewrite import rewritten
from workloads.edits.recorded.stages.weights import WeightGradients
from workloads.edits.recorded.zero_bubble import zero_bubble
from workloads.edits.registry import COUNT, EditCall, edit


@edit(
    "schedule", value=LOGGED_SCHEDULE, help="another order of the recorded forwards and backwards",
    kinds=("recorded",),
)  # fmt: skip
def schedule(job: EditableJob, call: EditCall) -> Edited:
    """The recorded work of each microbatch in another order."""
    job = edited_kernels(job)
    recorded = recorded_pipelines(job)
    return _edited(job, recorded, call.value)


@edit("pp", value=COUNT, help="pipeline stages; recognised layers are regrouped", kinds=("recorded",))
def pipeline_stages(job: EditableJob, call: EditCall) -> Edited:
    """The recorded layers on another number of stages, in the schedule as it is."""
    job = edited_kernels(job)
    old, new = call.value
    recorded = recorded_pipelines(job)
    there = len(recorded.stages)
    if old not in (None, there):
        raise InputError(f"the recorded pipeline has {there} stages, not {old}: pp={there}:{new}")
    if new < 2:
        raise InputError("without a pipeline other ops run: pp must be at least 2")
    return _edited(job, recorded, _as_recorded(recorded, call), stages=new)


def pipeline_layers(job: EditableJob, recorded: Recorded, call: EditCall) -> Edited:
    """More or fewer of the same layers on the stages of a recorded pipeline."""
    old, new = call.value
    layers = Layers(job, recorded)
    total = sum(layers.counts)
    if old not in (None, total):
        each = ", ".join(map(str, layers.counts))
        raise InputError(f"{total} layers are seen ({each} on the stages), not {old}: layers={total}:{new}")
    return _edited(job, recorded, _as_recorded(recorded, call), total=new)


def pipeline_microbatches(job: EditableJob, recorded: Recorded, call: EditCall) -> Edited:
    """More or fewer of the microbatches of a recorded pipeline."""
    old, new = call.value
    there = recorded.num_microbatches
    if old not in (None, there):
        raise InputError(
            f"the recorded pipeline has {there} microbatches, not {old}: {call.key}={there}:{new}"
        )
    return _edited(job, recorded, _as_recorded(recorded, call), microbatches=new)


def _as_recorded(recorded: Recorded, call: EditCall) -> WantedSchedule:
    if recorded.schedule == "as recorded":
        raise InputError(
            "the recorded schedule is none that is known (1f1b, gpipe, interleaved): name one first, as in"
            f" --edit schedule=1f1b --edit {call.key}={call.text}"
        )
    name, _, chunks = recorded.schedule.partition(":")
    return WantedSchedule(name, int(chunks or 1))


def _edited(
    job: EditableJob,
    recorded: Recorded,
    wanted: WantedSchedule,
    *,
    stages: int = 0,
    total: int = 0,
    microbatches: int = 0,
) -> Edited:
    """Another schedule; where given, other stages, layers in all, microbatches."""
    there, chunks = len(recorded.stages), wanted.virtual_stages
    stages = stages or there
    assumed = [recorded.told]
    layers = None
    if total or (stages, chunks) != (there, recorded.num_chunks):
        layers = Layers(job, recorded)
        regroups = bool(total) or stages != there
        _check_layers(layers.counts, total, stages, chunks, regroups)
        each = ", ".join(map(str, layers.counts))
        assumed.append(
            f"{sum(layers.counts)} layers told by repetition ({each} on the recorded stages); what comes"
            " before the first and after the last stays at the ends"
        )
    if stages != there:
        assumed.append(
            "stages between run what a recorded stage between runs"
            if there > 2
            else "stages between run the first stage's layers"
        )
    if total or stages != there:
        assumed.append("optimizer and communication of gradients in proportion to parameters")
    if microbatches > recorded.num_microbatches:
        assumed.append("microbatches beyond the recorded ones take their times in turn")
    weights = WeightGradients(job, wanted.weight_grad_share) if wanted.name == "zero_bubble" else None
    if weights is not None:
        assumed.append(weights.told)
    order = _order(recorded, wanted, stages, microbatches or recorded.num_microbatches, weights)
    validate_schedule(order)
    overlapped = chunks > 1 or (recorded.overlapped and recorded.num_chunks == 1) or weights is not None
    plan = PipelineRewrite(job, recorded, Wanted(stages, chunks, order, overlapped, total), layers, weights)
    assumed.append(
        f"a send between stages takes {plan.transfer_ps(0, 1) / 1e9:.3f} ms, from the shortest recorded;"
        + (" computation goes on meanwhile" if overlapped else " both stages wait for it")
    )
    if plan.planner is not None:
        assumed.append("ranks fill nodes in order; sends between nodes in proportion to NCCL's plans")
    edited = rewritten(plan)
    return Edited(edited, tuple(assumed), int(plays(edited.graph).sum()))


def _order(
    recorded: Recorded,
    wanted: WantedSchedule,
    stages: int,
    microbatches: int,
    weights: WeightGradients | None,
) -> Schedule:
    if wanted.name == "gpipe":
        return gpipe(stages, microbatches)
    if weights is None:
        return interleaved_one_f_one_b(stages, microbatches, wanted.virtual_stages)
    if recorded.num_chunks > 1:
        raise InputError("recorded with model chunks: give schedule=1f1b first")

    @cache
    def duration_ps(stage: int, kind: str, microbatch: int) -> int:
        index = recorded.stages[stage][0]
        like = Action("F" if kind == "F" else "B", microbatch % recorded.num_microbatches)
        at = recorded.order[stage].index(like)
        rows = recorded.steps[index][0].pieces[at].body
        return weights.seconds(rows, {"B": "I"}.get(kind, kind))

    order = zero_bubble(stages, microbatches, duration_ps, max(recorded.transfer_ps))
    words = {"F": "F", "B": "I", "W": "W"}
    return [[Action(words[kind], microbatch) for kind, microbatch in own] for own in order]  # type: ignore[arg-type]


def _check_layers(counts: list[int], total: int, stages: int, chunks: int, regroups: bool) -> None:
    places = stages * chunks
    if total and total % places:
        near = max(1, round(total / places)) * places
        raise InputError(
            f"{total} layers do not fall evenly on {places} model chunks; nearest: {near} layers"
        )
    total = total or sum(counts)
    if regroups and total % places:
        fits = [n for n in range(2, total + 1) if total % (n * chunks) == 0]
        shown = f"; nearest: {min(fits, key=lambda n: abs(n - stages))} stages" if fits else ""
        raise InputError(f"{total} layers do not fall evenly on {places} model chunks{shown}")
    for count in [] if regroups else counts:
        if count % chunks:
            near = min((n for n in range(1, count + 1) if count % n == 0), key=lambda n: abs(n - chunks))
            raise InputError(
                f"{count} layers of a stage do not fall evenly on {chunks} model chunks; nearest: {near}"
            )
