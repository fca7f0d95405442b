"""Schedules are those of ``torch.distributed.pipelining``, action by action, for many sizes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from simcore.graph.schedules import (
    Placement,
    Schedule,
    dual_pipe_v,
    gpipe,
    interleaved_one_f_one_b,
    validate_schedule,
    virtual_stage,
    zb_v,
    zero_bubble,
)

torch_schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
KINDS = {"FORWARD": "F", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W", "FULL_BACKWARD": "B"}
#: (stages, microbatches) for schedules without conditions.
SIZES = [(stages, count) for stages in (2, 3, 4, 8) for count in range(1, 20)]

#: An action as torch sees it: kind, microbatch, place of its chunk in the model.
Seen = tuple[str, int, int]


def theirs(name: str, stages: int, microbatches: int, chunks: int) -> list[list[Seen]]:
    """What every stage does, in torch's order; what it does at once is one after the other."""
    own = [
        SimpleNamespace(
            group_size=stages, group_rank=0, num_stages=stages * chunks, stage_index=chunk * stages,
            is_first=False, is_last=False, group=None, submod=None,
        )
        for chunk in range(chunks)
    ]  # fmt: skip
    order = getattr(torch_schedules, name)(own, microbatches).pipeline_order
    return [
        [
            (KINDS[part.computation_type.name], part.microbatch_index, part.stage_index)
            for action in order[stage]
            if action is not None
            for part in getattr(action, "sub_actions", None) or (action,)
        ]
        for stage in range(stages)
    ]


def ours(schedule: Schedule, placement: Placement) -> list[list[Seen]]:
    validate_schedule(schedule, placement)
    return [
        [(a.kind, a.microbatch, virtual_stage(stage, a.chunk, len(schedule), placement)) for a in actions]
        for stage, actions in enumerate(schedule)
    ]


@pytest.mark.parametrize(
    ("name", "make"),
    [("ScheduleInterleaved1F1B", interleaved_one_f_one_b), ("ScheduleInterleavedZeroBubble", zero_bubble)],
)
@pytest.mark.parametrize("chunks", [2, 3])
def test_interleaved(name: str, make: Any, chunks: int) -> None:
    compared = 0
    for stages, count in SIZES:
        rounds = max(1, count // stages)
        if count % rounds or count < stages:  # torch refuses the former, this package the latter
            continue
        schedule = make(stages, count, chunks, group_size=count // rounds)
        assert ours(schedule, "loop") == theirs(name, stages, count, chunks), (stages, count)
        compared += 1
    assert compared > 20


@pytest.mark.parametrize("chunks", [2, 3])
def test_gpipe_over_chunks(chunks: int) -> None:
    for stages, count in SIZES:
        assert ours(gpipe(stages, count, chunks), "loop") == theirs(
            "ScheduleLoopedBFS", stages, count, chunks
        )


def test_zb_v() -> None:
    for stages, count in SIZES:
        assert ours(zb_v(stages, count), "v") == theirs("ScheduleZBVZeroBubble", stages, count, 2)


def test_dual_pipe_v() -> None:
    for stages, count in SIZES:
        if count >= 2 * stages:
            assert ours(dual_pipe_v(stages, count), "v") == theirs("ScheduleDualPipeV", stages, count, 2)
