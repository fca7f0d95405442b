"""Edits of a logged pipeline: other schedules, chunks and microbatches with the stages' own times."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simcore.errors import InputError, nearest
from simcore.graph.kinds import is_p2p
from simcore.graph.schedules import Schedule, gpipe, interleaved_one_f_one_b, validate_schedule
from simcore.graph.size import refuse_too_large
from simcore.records import dataclass
from workloads.edits.job import EditableJob, Edited
from workloads.edits.recorded.stage_times import Part, StageTimes, regrouped, without_stalls
from workloads.edits.recorded.zero_bubble import zero_bubble
from workloads.edits.registry import COUNT, WHOLE, EditCall, Value, edit
from workloads.imports.logs.pipeline_graph import ACTION_NAMES, pipeline_graph_of
from workloads.imports.logs.pipeline_job import PipelineOrigin
from workloads.imports.logs.pipeline_plan import PipelinePlan, PlannedAction, StagePlan, situations

SCHEDULES = ("1f1b", "gpipe", "interleaved", "zero_bubble")
_WEIGHT_SHARE = 0.5  # of a backward: as many multiplications for weights as for inputs
_OPTIONS = ("virtual_stages", "weight_grad_share")


@dataclass(frozen=True)
class WantedSchedule:
    """A schedule by name with its options."""

    name: str
    virtual_stages: int = 1
    weight_grad_share: float = _WEIGHT_SHARE


def _schedule_value(text: str) -> WantedSchedule:
    """``interleaved``, ``interleaved:4`` or ``interleaved,virtual_stages=4``."""
    head, *options = text.split(",")
    name, _, chunks = head.partition(":")
    if name not in SCHEDULES:
        raise InputError(f"cannot be {name!r}{nearest(name, SCHEDULES)}")
    given = {"virtual_stages": chunks} if chunks else {}
    for option in options:
        key, _, value = option.partition("=")
        if key not in _OPTIONS:
            raise InputError(f"{name} has no option {key!r}{nearest(key, _OPTIONS)}")
        given[key] = value
    virtual = int(given.get("virtual_stages", "2" if name == "interleaved" else "1"))
    share = float(given.get("weight_grad_share", _WEIGHT_SHARE))
    if not (virtual >= 2 if name == "interleaved" else virtual == 1):
        raise InputError(f"{name} cannot have {virtual} virtual stages per stage")
    if not 0 < share < 1:
        raise InputError(f"weight_grad_share={share:g}: is the part of a backward, between 0 and 1")
    return WantedSchedule(name, virtual, share)


LOGGED_SCHEDULE = Value("1f1b|gpipe|interleaved[:chunks]|zero_bubble", _schedule_value)


@edit(
    "schedule", value=LOGGED_SCHEDULE, help="another order of forwards and backwards, same stage times",
    kinds=("pipeline_log",),
)  # fmt: skip
def logged_schedule(job: EditableJob, call: EditCall) -> Edited:
    """The logged work in another order."""
    return _edited(job, call.value)


@edit(
    "virtual_stages", value=WHOLE, help="model chunks per stage (1: not interleaved)", kinds=("pipeline_log",)
)
def virtual_stages(job: EditableJob, call: EditCall) -> Edited:
    """Interleaved 1F1B with so many chunks, or 1F1B."""
    wanted = WantedSchedule("interleaved" if call.value > 1 else "1f1b", call.value)
    return _edited(job, wanted)


@edit("num_microbatches", value=WHOLE, help="microbatches per iteration", kinds=("pipeline_log",))
def logged_microbatches(job: EditableJob, call: EditCall) -> Edited:
    """More or fewer of the same microbatches, in the schedule as it is."""
    assert isinstance(job.origin, PipelineOrigin), "kind pipeline_log"
    schedule, plan = job.origin.schedule, job.origin.plan
    if schedule not in SCHEDULES:
        raise InputError(f"the logged schedule ({schedule.replace('_', '-')}) cannot be written anew")
    return _edited(job, WantedSchedule(schedule, plan.num_chunks), call.value)


@edit("pp", value=COUNT, help="pipeline stages; layers put together or parted", kinds=("pipeline_log",))
def logged_stages(job: EditableJob, call: EditCall) -> Edited:
    """Neighbouring stages put together, or each cut in equal parts, in 1F1B or GPipe."""
    origin, stalled = _origin(job)
    plan, (old, new) = origin.plan, call.value
    if old not in (None, plan.num_stages):
        raise InputError(f"the log has {plan.num_stages} stages, not {old}: pp={plan.num_stages}:{new}")
    if origin.schedule not in ("1f1b", "gpipe"):
        raise InputError(
            f"stages of {origin.schedule.replace('_', '-')} cannot be regrouped; schedule=1f1b first"
        )
    if new < 2 or (new % plan.num_stages and plan.num_stages % new):
        fits = [
            n for n in range(2, 4 * plan.num_stages + 1) if not (n % plan.num_stages and plan.num_stages % n)
        ]
        near = min(fits, key=lambda n: abs(n - new))
        raise InputError(
            f"{plan.num_stages} logged stages cannot be put together or parted to {new}; nearest: pp={near}"
        )
    microbatches = _microbatches(plan)
    iterations = {number: regrouped(stages, microbatches, new) for number, stages in plan.iterations.items()}
    lost = tuple(stage * new // plan.num_stages for stage in plan.stood_in)
    origin = replace(origin, plan=replace(plan, iterations=iterations, stood_in=lost))
    return _rewritten(
        job, origin, WantedSchedule(origin.schedule), microbatches,
        f"layers lie evenly on the {plan.num_stages} logged stages, but for what the last takes longer (head,"
        f" loss), and can be put on {new}; the time of sends stays", *stalled,
    )  # fmt: skip


def _origin(job: EditableJob) -> tuple[PipelineOrigin, list[str]]:
    """What the schedule is predicted from, with what edits before it have changed, and what that assumes."""
    assert isinstance(job.origin, PipelineOrigin), "kind pipeline_log"
    plan = _current_plan(job)
    iterations = {number: without_stalls(stages) for number, stages in plan.iterations.items()}
    stalls = [stall for _, found in iterations.values() for stall in found]
    plan = replace(plan, iterations={number: stages for number, (stages, _) in iterations.items()})
    assumed = []
    if stalls:
        lasted_ps, lasts_ps = max(stalls)
        assumed.append(
            f"{len(stalls)} pass(es) of over twice what their stage takes for that microbatch (a host that"
            f" paused; the longest {lasted_ps / 1e9:.0f} for {lasts_ps / 1e9:.0f} ms) last what it takes"
        )
    return replace(job.origin, plan=plan), assumed


def _current_plan(job: EditableJob) -> PipelinePlan:
    """The plan of ``job`` with durations as the graph has them now.

    Errors: InputError when the graph is no longer that of a plan: an edit took ops out, or changed the sends.
    """
    assert isinstance(job.origin, PipelineOrigin), "kind pipeline_log"
    plan, graph = job.origin.plan, job.graph
    sends = graph.ops.recorded_ps[is_p2p(graph.ops.kind)]
    known = [time for times in plan.p2p_ps.values() for time in times.values()]
    if not np.isin(sends, known).all():
        raise InputError("the sends were edited before; put edits of the schedule first")
    iterations = {number: list(stages) for number, stages in plan.iterations.items()}
    for stage, rank in enumerate(job.ranks):
        names = rank.recorded.name
        acts = np.isin(names.codes, [code for code, name in enumerate(names.values) if name in ACTION_NAMES])
        first = graph.template_start[int(graph.programs[stage].template[0])]
        durations = graph.ops.recorded_ps[first + np.sort(rank.flat[acts])].tolist()
        if len(durations) != sum(len(stages[stage].actions) for stages in iterations.values()):
            raise InputError("forwards or backwards were taken out before; put edits of the schedule first")
        left = iter(durations)
        for stages in iterations.values():
            actions = tuple(replace(action, duration_ps=next(left)) for action in stages[stage].actions)
            stages[stage] = replace(stages[stage], actions=actions)
    return replace(plan, iterations={number: tuple(stages) for number, stages in iterations.items()})


def _microbatches(plan: PipelinePlan) -> int:
    first = next(iter(plan.iterations.values()))[0]
    return len({action.microbatch for action in first.actions})


def _edited(job: EditableJob, wanted: WantedSchedule, microbatches: int | None = None) -> Edited:
    origin, stalled = _origin(job)
    return _rewritten(job, origin, wanted, microbatches or _microbatches(origin.plan), *stalled)


def _rewritten(
    job: EditableJob, origin: PipelineOrigin, wanted: WantedSchedule, microbatches: int, *assumptions: str
) -> Edited:
    """The plan of ``origin`` written anew in a schedule."""
    plan = origin.plan
    assumed = [
        *assumptions,
        "stages take the logged times for each microbatch; time that the log does not explain is the log's"
        f" median for the situation; a send takes {origin.gaps.p2p_ps / 1e9:.3f} ms",
    ]
    logged = _microbatches(plan)
    if microbatches > logged:
        assumed.append(f"microbatches beyond {logged} take the times of the logged ones in turn")
    chunks = wanted.virtual_stages
    if chunks != plan.num_chunks:
        assumed.append(
            "a stage's layers fall evenly on its chunks; what the last stage takes longer (head, loss) is the"
            " last chunk's"
        )
    overlapped = wanted.name == "interleaved"
    if overlapped:
        assumed.append(
            "sends run beside computes (Megatron's overlap_p2p_communication) and take nothing from them:"
            " where stages share a node, waiting receives may hold them up by several percent"
        )
    elif wanted.name == "zero_bubble" and not _has_weights(plan):
        assumed.append(f"{wanted.weight_grad_share:.0%} of a backward is the gradients of weights")
    iterations = {
        number: _iteration(origin, stages, wanted, microbatches) for number, stages in plan.iterations.items()
    }
    num_stages = plan.num_stages
    pairs = {(a, (a + step) % num_stages) for a in range(num_stages) for step in (-1, 1)}
    p2p = {number: dict.fromkeys(pairs, origin.gaps.p2p_ps) for number in iterations}
    made = PipelinePlan(chunks, iterations, p2p, overlapped=overlapped, stood_in=plan.stood_in)
    graph, ranks, _ = pipeline_graph_of(made)
    changed = sum(len(own.actions) for stages in iterations.values() for own in stages)
    after = replace(job, graph=graph, ranks=ranks, origin=PipelineOrigin(made, wanted.name, origin.gaps))
    return Edited(after, tuple(assumed), changed)


def _has_weights(plan: PipelinePlan) -> bool:
    first = next(iter(plan.iterations.values()))[0]
    return any(action.kind == "W" for action in first.actions)


def _iteration(
    origin: PipelineOrigin, stages: tuple[StagePlan, ...], wanted: WantedSchedule, microbatches: int
) -> tuple[StagePlan, ...]:
    times = StageTimes(stages, _microbatches(origin.plan))
    if wanted.name == "zero_bubble":
        rows = _zero_bubble_actions(origin, times, len(stages), microbatches, wanted.weight_grad_share)
    else:
        schedule = _order(wanted, len(stages), microbatches)
        validate_schedule(schedule)
        rows = [
            [
                _planned(a.kind, a.microbatch, a.chunk, times.part(stage, *a, wanted.virtual_stages))
                for a in actions
            ]
            for stage, actions in enumerate(schedule)
        ]
    made = []
    for stage, (own, actions) in enumerate(zip(stages, rows, strict=True)):
        each = situations(stage, actions, len(stages), wanted.virtual_stages, False)
        overlapped = wanted.name == "interleaved"
        with_gaps = tuple(
            replace(action, gap_ps=origin.gaps.of(situation, overlapped))
            for situation, action in zip(each, actions, strict=True)
        )
        made.append(replace(own, actions=with_gaps))
    return tuple(made)


def _order(wanted: WantedSchedule, num_stages: int, microbatches: int) -> Schedule:
    if wanted.name == "gpipe":
        return gpipe(num_stages, microbatches)
    return interleaved_one_f_one_b(num_stages, microbatches, wanted.virtual_stages)


def _planned(kind: str, microbatch: int, chunk: int, part: Part) -> PlannedAction:
    return PlannedAction(kind, microbatch, chunk, part.duration_ps, recorded_ps=part.recorded_ps)


def _zero_bubble_actions(
    origin: PipelineOrigin, times: StageTimes, num_stages: int, microbatches: int, share: float
) -> list[list[PlannedAction]]:
    refuse_too_large("the edited log", ranks=num_stages, ops=3 * num_stages * microbatches)
    parts: dict[tuple[int, str, int], Part] = {}
    for stage in range(num_stages):
        for microbatch in range(microbatches):
            parts[stage, "F", microbatch] = times.part(stage, "F", microbatch, 0, 1)
            inputs, weights = times.split(stage, microbatch, share)
            parts[stage, "B", microbatch], parts[stage, "W", microbatch] = inputs, weights
    order = zero_bubble(num_stages, microbatches, lambda *key: parts[key].duration_ps, origin.gaps.p2p_ps)
    return [
        [_planned(kind, microbatch, 0, parts[stage, kind, microbatch]) for kind, microbatch in own]
        for stage, own in enumerate(order)
    ]
