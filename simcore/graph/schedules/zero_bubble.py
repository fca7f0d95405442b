"""Zero-bubble schedules: backwards in two parts, weight gradients where a stage would wait."""

from __future__ import annotations

from simcore.graph.schedules.actions import Action, Schedule
from simcore.graph.schedules.dual_pipe import VWriter
from simcore.graph.schedules.orders import check_counts, looped


def zero_bubble(
    num_stages: int, num_microbatches: int, num_chunks: int = 1, *, group_size: int = 0
) -> Schedule:
    """ZB-H1 (arXiv 2401.10241, 2.3): 1F1B's order, weight gradients as late as its memory allows.

    Stage s keeps s weight gradients in hand: it then holds as many microbatches as 1F1B's first stage does.
    While the pipeline drains, a stage computes one wherever it would wait for the next gradient.  With equal
    times of F, I and W the bubble is (p - 1)(F + I - W): a third of 1F1B's.  With several chunks the same is
    done to interleaved 1F1B, whose stages then warm up by one microbatch a hop, as input gradients come back
    twice as fast (``ScheduleInterleavedZeroBubble`` of PyTorch); errors as there.
    """
    order = looped(num_stages, num_microbatches, num_chunks, group_size, hop=1)
    return [_one_stage(own, stage) for stage, own in enumerate(order)]


def _one_stage(own: list[Action], stage: int) -> list[Action]:
    out: list[Action] = []
    late: list[Action] = []
    forwards = sum(action.kind == "F" for action in own)
    for action in own:
        if action.kind == "F":
            out.append(action)
            forwards -= 1
            continue
        out.append(action._replace(kind="I"))
        late.append(action._replace(kind="W"))
        # While forwards are left ``stage`` gradients stay in hand; afterwards one fills each gap.
        if len(late) > stage or not forwards:
            out.append(late.pop(0))
    return out + late


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
