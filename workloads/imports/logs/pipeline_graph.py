"""A pipeline's plan as an execution graph: sends meet receives, a stage plays its actions in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simcore.graph import Graph, OpKind, ProcessGroup
from workloads.imports.logs.pipeline_plan import ActionKey, PipelinePlan, StagePlan, keys, producer
from workloads.imports.recorded import ImportedRank
from workloads.imports.timed_ops import RecordedCall, TimedOp, build_timed_graph, imported_rank

_PHASES = {"F": "fwd", "B": "bwd", "W": "bwd"}
_NAMES = {"F": "forward", "B": "backward", "W": "weight gradient"}
#: Names of the ops that are actions of a plan, in a stage's program in the plan's order.
ACTION_NAMES = tuple(_NAMES.values())


def pipeline_graph_of(plan: PipelinePlan) -> tuple[Graph, tuple[ImportedRank, ...], list[int]]:
    """The graph of a plan, its ranks (one per stage), and the unexplained time kept on each, ps."""
    numbers = range(plan.num_stages)
    ranks: list[list[TimedOp]] = [[] for _ in numbers]
    origin = 0
    for number, stages in plan.iterations.items():
        consumers = _consumers(plan, stages)
        for stage, own in enumerate(stages):
            _write_stage(ranks[stage], plan, number, stage, own, origin, consumers)
        origin += 1 + max(own.offset_ps + own.recorded_end_ps for own in stages)
    groups = [ProcessGroup("steps", ((plan.num_stages, 1),), explicit=(tuple(numbers),))]
    if plan.num_stages > 1:
        groups += [
            ProcessGroup(_group(kind, chunk), ((plan.num_stages, 1),), explicit=(tuple(numbers),))
            for kind in ("F", "B")
            for chunk in range(plan.num_chunks)
        ]
    graph, placed = build_timed_graph("pipeline log", list(numbers), ranks, groups)
    imported = tuple(
        imported_rank(number, ops, place) for number, ops, place in zip(numbers, ranks, placed, strict=True)
    )
    imported = tuple(
        replace(rank, steps=(), step_ops=()) if rank.number in plan.stood_in else rank for rank in imported
    )
    unexplained = [
        sum(action.gap_ps for stages in plan.iterations.values() for action in stages[stage].actions)
        for stage in numbers
    ]
    return graph, imported, unexplained


def _group(kind: str, chunk: int) -> str:
    """Sends of one kind into one chunk are a group: their order does not depend on the schedule's."""
    return f"pp {_NAMES[kind]} {chunk}"


def _consumers(plan: PipelinePlan, stages: Sequence[StagePlan]) -> dict[ActionKey, ActionKey]:
    """By action: the action on another stage, or another chunk, that needs its output."""
    found = {}
    for stage, own in enumerate(stages):
        for key in keys(stage, own.actions):
            source = producer(key, plan.num_stages, plan.num_chunks, plan.v_shaped)
            if source is not None:
                found[source] = key
    return found


def _write_stage(
    ops: list[TimedOp],
    plan: PipelinePlan,
    number: int,
    stage: int,
    own: StagePlan,
    origin_ps: int,
    consumers: dict[ActionKey, ActionKey],
) -> None:
    """Append one iteration of a stage to its ops."""
    last_of_stream = {op.stream: at for at, op in enumerate(ops)}
    begin = len(ops)
    ops.append(
        TimedOp(
            "begin of an iteration", "steps", origin_ps, origin_ps, number, gap_ps=0, recorded=False,
            waits=sorted(last_of_stream.values()), call=RecordedCall("steps", 0, collective="barrier"),
        )
    )  # fmt: skip
    start_ps = origin_ps + own.offset_ps
    # The stage's own begin: what it does first is measured from here.
    ops.append(
        TimedOp(
            "begin of the stage", "compute", start_ps, start_ps, number, [begin], is_kernel=False,
            duration_ps=0, gap_ps=own.offset_ps,
        )
    )  # fmt: skip
    at_of: dict[ActionKey, int] = {}
    before, free = begin + 1, 0
    end_of_record = own.recorded_end_ps
    p2p = plan.p2p_ps[number]
    for key, action in zip(keys(stage, own.actions), own.actions, strict=True):
        start, end = action.recorded_ps or (end_of_record, end_of_record)
        waits: list[int] = []
        source = producer(key, plan.num_stages, plan.num_chunks, plan.v_shaped)
        if source is not None and source.stage == stage:
            waits.append(at_of[source])
        elif source is not None:
            call = RecordedCall(
                _group(key.kind, key.chunk), p2p[source.stage, stage], OpKind.RECV,
                peer_delta=source.stage - stage,
            )  # fmt: skip
            posted = begin + 1 if plan.overlapped else before
            waits.append(len(ops))
            came = max(min(free, start), start - action.unexplained_ps)
            ops.append(
                TimedOp(
                    f"receive {_NAMES[key.kind]}", f"receive {_NAMES[key.kind]} {key.chunk}",
                    start_ps + min(free, start), start_ps + came, number, [posted], call, is_comm=True,
                    gap_ps=0, phase=_PHASES[key.kind], seen_after=before,
                )
            )  # fmt: skip
        before = len(ops)
        at_of[key] = before
        ops.append(
            TimedOp(
                _NAMES[key.kind], "compute", start_ps + start, start_ps + end, number, waits,
                duration_ps=action.duration_ps, gap_ps=action.gap_ps, phase=_PHASES[key.kind],
            )
        )  # fmt: skip
        free = end
        target = consumers.get(key)
        if target is not None and target.stage != stage:
            call = RecordedCall(
                _group(key.kind, target.chunk), p2p[stage, target.stage], OpKind.SEND,
                peer_delta=target.stage - stage,
            )  # fmt: skip
            ops.append(
                TimedOp(
                    f"send {_NAMES[key.kind]}", f"send {_NAMES[key.kind]} {target.chunk}", start_ps + end,
                    start_ps + end, number, [before], call, recorded=False, gap_ps=0, phase=_PHASES[key.kind],
                )
            )  # fmt: skip
    if own.tail_ps:
        ops.append(
            TimedOp(
                "rest of the iteration", "compute", start_ps + min(free, end_of_record),
                start_ps + end_of_record, number, duration_ps=own.tail_ps, gap_ps=0, is_kernel=False,
                phase="optimizer",
            )
        )  # fmt: skip
