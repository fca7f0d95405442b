"""What stages of a pipeline do: actions, where model chunks live, and what an action needs first.

"F" is the forward of one microbatch on one model chunk, "B" its backward.  A backward may be two actions:
"I" computes the gradient of the chunk's input, which the stage before waits for, and "W" the gradients of
its weights, which nobody waits for (Qi et al., arXiv 2401.10241).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

#: How ``v`` chunks a stage lie on ``p`` stages: "loop" goes round (arXiv 2104.04473), "v" comes back up.
Placement = Literal["loop", "v"]


class Action(NamedTuple):
    """One step of a stage: forward, backward or a part of it, of a microbatch on a model chunk."""

    kind: Literal["F", "B", "I", "W"]
    microbatch: int
    chunk: int = 0

    def __str__(self) -> str:
        return f"{self.kind}{self.microbatch}" + (f".{self.chunk}" if self.chunk else "")

    @property
    def sends_back(self) -> bool:
        """Whether it makes the gradient that the stage before waits for."""
        return self.kind in ("B", "I")


Schedule = list[list[Action]]


def virtual_stage(stage: int, chunk: int, num_stages: int, placement: Placement = "loop") -> int:
    """Position of a chunk in the model, counted in chunks."""
    if placement == "v" and chunk % 2:
        return (chunk + 1) * num_stages - 1 - stage
    return chunk * num_stages + stage


def home(virtual: int, num_stages: int, placement: Placement = "loop") -> tuple[int, int]:
    """(stage, chunk) of a virtual stage."""
    chunk, place = divmod(virtual, num_stages)
    return (num_stages - 1 - place if placement == "v" and chunk % 2 else place), chunk


def needs(
    action: Action, stage: int, num_stages: int, num_chunks: int, placement: Placement = "loop"
) -> list[tuple[int, Action]]:
    """(stage, action) pairs that must be done before ``action`` on ``stage``.

    The next stage's backward is named "B"; "I" of the same microbatch and chunk does as well.
    """
    microbatch, chunk = action.microbatch, action.chunk
    virtual = virtual_stage(stage, chunk, num_stages, placement)
    if action.kind == "F":
        if not virtual:
            return []
        before, its_chunk = home(virtual - 1, num_stages, placement)
        return [(before, Action("F", microbatch, its_chunk))]
    if action.kind == "W":
        return [(stage, Action("I", microbatch, chunk))]
    found = [(stage, Action("F", microbatch, chunk))]
    if virtual < num_stages * num_chunks - 1:
        later, its_chunk = home(virtual + 1, num_stages, placement)
        found.append((later, Action("B", microbatch, its_chunk)))
    return found
