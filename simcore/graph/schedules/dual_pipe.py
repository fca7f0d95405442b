"""DualPipeV: DeepSeek's DualPipe cut in half (arXiv 2412.19437, section 3.2.1; Qi et al., "cut-in-half").

Stage s holds two chunks of the model, s from its beginning and s from its end, so that the first stage has
embedding and head, and the last turns round.  Microbatches go down the V and come back up.
"""

from __future__ import annotations

from dataclasses import dataclass, field

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
