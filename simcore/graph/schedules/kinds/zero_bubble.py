"""ZB-H1: backwards in two parts, weight gradients where a stage of 1F1B would wait."""

from __future__ import annotations

from simcore.graph.schedules.actions import Action, Schedule
from simcore.graph.schedules.kind import ScheduleKind, register
from simcore.graph.schedules.orders import looped


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


register(
    ScheduleKind(
        "zero_bubble",
        lambda p, m, chunks, group: zero_bubble(p, m, chunks, group_size=group),
        message_by_message=True,
        known_as=r"zero[ -]?bubble|\bzb-?h1\b",
        proven=True,
    )
)
