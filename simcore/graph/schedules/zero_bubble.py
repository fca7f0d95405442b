"""ZB-H1: backwards in two parts, weight gradients where a stage would wait (arXiv 2401.10241, 2.3)."""

from __future__ import annotations

from simcore.graph.schedules.actions import Action, Schedule
from simcore.graph.schedules.orders import check_counts, one_f_one_b


def zero_bubble(num_stages: int, num_microbatches: int) -> Schedule:
    """ZB-H1: forwards and input gradients in 1F1B's order, weight gradients as late as its memory allows.

    Stage s keeps s weight gradients in hand: it then holds as many microbatches as 1F1B's first stage does.
    While the pipeline drains, a stage computes one wherever it would wait for the next gradient.  With equal
    times of F, I and W the bubble is (p - 1)(F + I - W): a third of 1F1B's.
    """
    check_counts(num_stages, num_microbatches, 1)
    return [_one_stage(own, stage) for stage, own in enumerate(one_f_one_b(num_stages, num_microbatches))]


def _one_stage(own: list[Action], stage: int) -> list[Action]:
    out: list[Action] = []
    late: list[Action] = []
    forwards = sum(action.kind == "F" for action in own)
    for action in own:
        if action.kind == "F":
            out.append(action)
            forwards -= 1
            continue
        out.append(Action("I", action.microbatch))
        late.append(Action("W", action.microbatch))
        # While forwards are left ``stage`` gradients stay in hand; afterwards one fills each gap.
        if len(late) > stage or not forwards:
            out.append(late.pop(0))
    return out + late
