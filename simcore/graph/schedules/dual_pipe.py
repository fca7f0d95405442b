"""DeepSeek's DualPipe (arXiv 2412.19437, section 3.2.1), and DualPipeV, its cut in half (Qi et al.).

DualPipe: every stage holds two chunks, s of one copy of the model and s from the end of another.  Half of the
microbatches enter at the first stage, half at the last one.
DualPipeV: stage s holds two chunks of one model, s from its beginning and s from its end, so that the first
stage has embedding and head, and the last turns round.  Microbatches go down the V and come back up.
A V of p stages folded open is a DualPipe of 2 p: its stages do what those of the V do, in either half.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from simcore.errors import InputError
from simcore.graph.schedules.actions import Action, Schedule
from simcore.graph.schedules.orders import check_counts


def dual_pipe_v(num_stages: int, num_microbatches: int) -> Schedule:
    """The eight phases of DualPipeV for every stage; place chunks with ``placement="v"``.

    InputError with fewer than ``2 * num_stages`` microbatches: the phases would not fill.
    """
    check_counts(num_stages, num_microbatches, 2)
    if num_microbatches < 2 * num_stages:
        raise InputError(
            f"dualpipe_v: {num_microbatches} microbatches on {num_stages} stages; it needs at least two per"
            f" stage, {2 * num_stages}"
        )
    return [_stage(num_stages, num_microbatches, stage) for stage in range(num_stages)]


def dual_pipe(num_stages: int, num_microbatches: int) -> Schedule:
    """DualPipe's eight phases; place chunks with ``placement="both_ways"``.

    Chunk 0 takes the first half of the microbatches, from the first stage on, chunk 1 the others, from the
    last.  InputError for an odd number of stages or microbatches, or fewer than two microbatches a stage.
    """
    check_counts(num_stages, num_microbatches, 2)
    if num_stages % 2:
        near = f"{num_stages - 1} or {num_stages + 1}" if num_stages > 1 else "2"
        raise InputError(f"dualpipe: {num_stages} stages have no middle; nearest: {near}")
    if num_microbatches % 2 or num_microbatches < 2 * num_stages:
        more = max(2 * num_stages, num_microbatches + num_microbatches % 2)
        raise InputError(
            f"dualpipe: {num_microbatches} microbatches on {num_stages} stages; it takes an even number, at"
            f" least two for each stage; nearest: {more}"
        )
    half, from_each_end = num_stages // 2, num_microbatches // 2
    schedule = []
    for stage in range(num_stages):
        behind_middle = stage >= half
        actions = _stage(half, from_each_end, min(stage, num_stages - 1 - stage))
        both = [action._replace(chunk=action.chunk ^ behind_middle) for action in actions]
        schedule.append([a._replace(microbatch=a.microbatch + a.chunk * from_each_end) for a in both])
    return schedule


def overlapped_pairs(actions: Sequence[Action]) -> dict[int, int]:
    """Positions of forwards whose next action is a whole backward of another microbatch, and of those.

    DualPipe runs the two together: the exchanges of the one behind the compute of the other.
    """
    found: dict[int, int] = {}
    taken = -1
    for at, (first, second) in enumerate(pairwise(actions)):
        kinds = first.kind + second.kind
        if at > taken and kinds == "FB" and first.microbatch != second.microbatch:
            found[at] = taken = at + 1
    return found


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


def _stage(num_stages: int, num_microbatches: int, stage: int) -> list[Action]:
    after = num_stages - 1 - stage  # stages below this one
    out = VWriter()
    for _ in range(2 * after):
        out.f(0)
    for _ in range(stage + 1):
        out.f(0)
        out.f(1)
    for _ in range(after):
        out.b(1, split=True)
        out.w()
        out.f(1)
    for _ in range(num_microbatches - 2 * num_stages + stage + 1):
        out.f(0)
        out.b(1)
        out.f(1)
        out.b(0)
    for _ in range(after):
        out.b(1)
        out.f(1)
        out.b(0)
    # Half of the last backwards are split: their weight gradients fill the drain.
    half = stage + 1
    for number in range(2 * (stage + 1)):
        out.b(1 - number % 2, split=number >= half)
    for _ in range(after):
        out.w()
        out.b(0, split=True)
    while out.late:
        out.w()
    return out.actions
