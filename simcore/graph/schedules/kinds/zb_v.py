"""ZB-V: two chunks in a V, backwards in two parts."""

from __future__ import annotations

from simcore.graph.schedules.actions import Action, Schedule
from simcore.graph.schedules.kind import ScheduleKind, register
from simcore.graph.schedules.orders import VWriter, check_counts


def zb_v(num_stages: int, num_microbatches: int) -> Schedule:
    """ZB-V (arXiv 2401.10241, section 6): two chunks in a V, with 1F1B's memory and fewer bubbles than ZB-H1.

    Place chunks with ``placement="v"``.  The order is that of ``2 p - 1`` microbatches or more; with fewer,
    those that are not there are left out, and stages wait.
    """
    check_counts(num_stages, num_microbatches, 2)
    return [
        [a for a in _v_stage(num_stages, num_microbatches, stage) if a.microbatch < num_microbatches]
        for stage in range(num_stages)
    ]


def _v_stage(num_stages: int, num_microbatches: int, stage: int) -> list[Action]:
    after = num_stages - 1 - stage  # stages below this one
    total = max(2 * num_stages - 1, num_microbatches)
    out = VWriter()
    for _ in range(2 * after + 1):
        out.f(0)
    for _ in range(stage):
        out.f(1)
        out.f(0)
    for _ in range(after + 1):
        out.f(1)
        out.b(1, split=True)
        out.w()
    while out.forwards[1] < total:
        if out.forwards[0] < total:
            out.f(0)
        out.b(0, split=True)
        out.w()
        out.f(1)
        out.b(1, split=True)
        out.w()
    # The pipeline drains: input gradients first, as the stages above wait for them.
    for _ in range(stage):
        out.b(0, split=True)
        out.b(1, split=True)
    for _ in range(after + 1):
        out.b(0, split=True)
        out.w(0)
    for chunk in (1, 0):
        while any(action.chunk == chunk for action in out.late):
            out.w(chunk)
    return out.actions


register(
    ScheduleKind(
        "zb_v", lambda p, m, *_: zb_v(p, m), placement="v", num_chunks=2, known_as=r"\bzb-?v\b", proven=True
    )
)
