"""Schedules are those of ``torch.distributed.pipelining``, action by action, for many sizes."""

from __future__ import annotations

from collections.abc import Callable
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
from workloads.tracing.drive.fork_server import WorkerPool

KINDS = {"FORWARD": "F", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W", "FULL_BACKWARD": "B"}
#: (stages, microbatches) for schedules without conditions.
SIZES = [(stages, count) for stages in (2, 3, 4, 8) for count in range(1, 20)]

#: An action as torch sees it: kind, microbatch, place of its chunk in the model.
Seen = tuple[str, int, int]


def theirs(name: str, chunks: int, sizes: list[tuple[int, int]]) -> list[list[list[Seen]]]:
    """What every stage does, in torch's order, by size; what it does at once is one after the other."""
    return [_theirs(name, stages, count, chunks) for stages, count in sizes]


def _theirs(name: str, stages: int, microbatches: int, chunks: int) -> list[list[Seen]]:
    import torch.distributed.pipelining.schedules as torch_schedules

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


def check(
    pool: WorkerPool,
    name: str,
    chunks: int,
    placement: Placement,
    make: Callable[[int, int], Schedule],
    sizes: list[tuple[int, int]] = SIZES,
) -> None:
    seen = pool.submit(theirs, name, chunks, sizes).result()
    for (stages, count), expected in zip(sizes, seen, strict=True):
        assert ours(make(stages, count), placement) == expected, (stages, count)


@pytest.mark.parametrize(
    ("name", "make"),
    [("ScheduleInterleaved1F1B", interleaved_one_f_one_b), ("ScheduleInterleavedZeroBubble", zero_bubble)],
)
@pytest.mark.parametrize("chunks", [2, 3])
def test_interleaved(pool: WorkerPool, name: str, make: Any, chunks: int) -> None:
    # Torch refuses microbatches that are no whole rounds, this package fewer than stages.
    sizes = [(p, count) for p, count in SIZES if count >= p and count % (count // p) == 0]
    assert len(sizes) > 20
    check(
        pool, name, chunks, "loop",
        lambda p, count: make(p, count, chunks, group_size=count // (count // p)), sizes,
    )  # fmt: skip


@pytest.mark.parametrize("chunks", [2, 3])
def test_gpipe_over_chunks(pool: WorkerPool, chunks: int) -> None:
    check(pool, "ScheduleLoopedBFS", chunks, "loop", lambda p, count: gpipe(p, count, chunks))


def test_zb_v(pool: WorkerPool) -> None:
    check(pool, "ScheduleZBVZeroBubble", 2, "v", zb_v)


def test_dual_pipe_v(pool: WorkerPool) -> None:
    sizes = [(stages, count) for stages, count in SIZES if count >= 2 * stages]
    check(pool, "ScheduleDualPipeV", 2, "v", dual_pipe_v, sizes)
