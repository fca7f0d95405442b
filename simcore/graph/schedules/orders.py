"""What several schedules are made of: loops over chunks, and a V written action by action."""

from __future__ import annotations

from dataclasses import field

from simcore.errors import InputError
from simcore.graph.schedules.actions import Action, Schedule
from simcore.graph.size import refuse_too_large
from simcore.records import dataclass


def looped(num_stages: int, num_microbatches: int, num_chunks: int, group_size: int, *, hop: int) -> Schedule:
    """1F1B over chunks that go round the stages, in groups of ``group_size`` microbatches.

    0: as many as stages.  Stages warm up by ``hop`` microbatches more for each stage behind them (one chunk:
    by one).  InputError as :func:`interleaved_one_f_one_b`.
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
    actions = 2 * num_stages * num_microbatches * num_chunks
    refuse_too_large(f"a pipeline of {num_stages} stages", ranks=num_stages, ops=actions)


@dataclass
class VWriter:
    """Appends actions of one stage, counts microbatches by chunk, and keeps weight gradients for later."""

    actions: list[Action] = field(default_factory=list)
    forwards: list[int] = field(default_factory=lambda: [0, 0])
    backwards: list[int] = field(default_factory=lambda: [0, 0])
    late: list[Action] = field(default_factory=list)

    def f(self, chunk: int) -> None:
        """A forward."""
        self.actions.append(Action("F", self.forwards[chunk], chunk))
        self.forwards[chunk] += 1

    def b(self, chunk: int, *, split: bool = False) -> None:
        """A backward; ``split``: of the input only."""
        microbatch = self.backwards[chunk]
        self.backwards[chunk] += 1
        self.actions.append(Action("I" if split else "B", microbatch, chunk))
        if split:
            self.late.append(Action("W", microbatch, chunk))

    def w(self, chunk: int = -1) -> None:
        """The oldest weight gradient kept for later (of ``chunk``, unless that is -1)."""
        oldest = next(n for n, action in enumerate(self.late) if chunk in (-1, action.chunk))
        self.actions.append(self.late.pop(oldest))
