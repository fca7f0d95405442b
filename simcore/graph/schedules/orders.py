"""GPipe and 1F1B, plain and interleaved."""

from __future__ import annotations

from simcore.errors import InputError
from simcore.graph.schedules.actions import Action, Schedule


def gpipe(num_stages: int, num_microbatches: int, num_chunks: int = 1) -> Schedule:
    """All forwards, then all backwards (GPipe, arXiv 1811.06965).

    With several chunks one after the other, breadth first, and backwards in the opposite order of forwards
    (arXiv 2211.05953; ``ScheduleLoopedBFS`` of PyTorch).
    """
    check_counts(num_stages, num_microbatches, num_chunks)
    forward = [Action("F", m, chunk) for chunk in range(num_chunks) for m in range(num_microbatches)]
    backward = [action._replace(kind="B") for action in forward]
    if num_chunks > 1:
        backward.reverse()
    return [[*forward, *backward] for _ in range(num_stages)]


def one_f_one_b(num_stages: int, num_microbatches: int) -> Schedule:
    """1F1B with flush (PipeDream-Flush, arXiv 2006.09503): warm-up, alternate, cool-down."""
    return interleaved_one_f_one_b(num_stages, num_microbatches, 1)


def interleaved_one_f_one_b(
    num_stages: int, num_microbatches: int, num_chunks: int, *, group_size: int = 0
) -> Schedule:
    """Interleaved 1F1B (arXiv 2104.04473, section 2.2), in Megatron's order; one chunk is plain 1F1B.

    Microbatches advance in groups of ``group_size`` (0: ``num_stages``): a group on chunk 0, the same group
    on chunk 1, ...  InputError (with several chunks) when the last group would be smaller than the stages:
    some of them would wait for themselves.
    """
    return looped(num_stages, num_microbatches, num_chunks, group_size, hop=2)


def looped(num_stages: int, num_microbatches: int, num_chunks: int, group_size: int, *, hop: int) -> Schedule:
    """:func:`interleaved_one_f_one_b` whose stages warm up by ``hop`` microbatches more for each stage behind
    them (one chunk: by one).
    """
    check_counts(num_stages, num_microbatches, num_chunks)
    group = group_size or num_stages
    if num_chunks > 1:
        _check_groups(num_stages, num_microbatches, group)
    total = num_microbatches * num_chunks
    order = _forward_order(num_microbatches, num_chunks, group)
    forward = [Action("F", microbatch, chunk) for microbatch, chunk in order]
    backward = [Action("B", microbatch, num_chunks - 1 - chunk) for microbatch, chunk in order]
    schedule = []
    for stage in range(num_stages):
        if num_chunks == 1:
            warm_up = min(num_stages - stage - 1, total)
        else:
            warm_up = min(hop * (num_stages - stage - 1) + (num_chunks - 1) * group, total)
        steady = [action for pair in zip(forward[warm_up:], backward, strict=False) for action in pair]
        schedule.append([*forward[:warm_up], *steady, *backward[total - warm_up :]])
    return schedule


def _forward_order(num_microbatches: int, num_chunks: int, group: int) -> list[tuple[int, int]]:
    """(microbatch, chunk) in the order in which forwards run."""
    if num_chunks == 1:
        return [(microbatch, 0) for microbatch in range(num_microbatches)]
    return [
        (microbatch, chunk)
        for first in range(0, num_microbatches, group)
        for chunk in range(num_chunks)
        for microbatch in range(first, min(first + group, num_microbatches))
    ]


def _check_groups(num_stages: int, num_microbatches: int, group: int) -> None:
    if group < num_stages:
        raise InputError(
            f"interleaved 1F1B: groups of {group} microbatches are smaller than {num_stages} stages;"
            f" nearest: {num_stages}"
        )
    left = num_microbatches % group
    if left == 0 or (left >= num_stages and num_microbatches > group):
        return
    lower = num_microbatches - left
    near = f"{lower} or {lower + group}" if lower else str(group)
    if group == num_stages:
        raise InputError(
            f"interleaved 1F1B: {num_microbatches} microbatches are no multiple of {num_stages} stages;"
            f" nearest: {near} microbatches"
        )
    raise InputError(
        f"interleaved 1F1B: {num_microbatches} microbatches in groups of {group} leave {left}, fewer than"
        f" {num_stages} stages; nearest: {near} microbatches"
    )


def check_counts(num_stages: int, num_microbatches: int, num_chunks: int) -> None:
    """InputError unless there is at least one of each."""
    for what, value in (("stages", num_stages), ("microbatches", num_microbatches), ("chunks", num_chunks)):
        if value < 1:
            raise InputError(f"a pipeline needs at least one of its {what}, not {value}")
