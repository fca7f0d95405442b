"""What stages of a pipeline do: actions, where model chunks live, and what an action needs first.

"F" is the forward of one microbatch on one model chunk, "B" its backward.  A backward may be two actions:
"I" computes the gradient of the chunk's input, which the stage before waits for, and "W" the gradients of
its weights, which nobody waits for (Qi et al., arXiv 2401.10241).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

#: How ``v`` chunks a stage lie on ``p`` stages: "loop" goes round (arXiv 2104.04473), "v" comes back up.
#: "both_ways": two copies of a model of ``p`` chunks, the second laid out from the last stage to the first,
#: so that microbatches enter at both ends (arXiv 2412.19437, section 3.2.1).
Placement = Literal["loop", "v", "both_ways"]


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


def num_virtual(num_stages: int, num_chunks: int, placement: Placement = "loop") -> int:
    """Chunks that a model is cut into."""
    return num_stages if placement == "both_ways" else num_stages * num_chunks


def virtual_stage(stage: int, chunk: int, num_stages: int, placement: Placement = "loop") -> int:
    """Position of a chunk in the model, counted in chunks."""
    if placement == "both_ways":
        return num_stages - 1 - stage if chunk else stage
    if placement == "v" and chunk % 2:
        return (chunk + 1) * num_stages - 1 - stage
    return chunk * num_stages + stage


def home(virtual: int, num_stages: int, placement: Placement = "loop") -> tuple[int, int]:
    """(stage, chunk) of a virtual stage; of two copies the first."""
    if placement == "both_ways":
        return virtual, 0
    chunk, place = divmod(virtual, num_stages)
    return (num_stages - 1 - place if placement == "v" and chunk % 2 else place), chunk


def neighbour(
    stage: int, chunk: int, step: int, num_stages: int, num_chunks: int, placement: Placement = "loop"
) -> tuple[int, int] | None:
    """(stage, chunk) that is ``step`` chunks further in the model, of the same copy; None beyond its ends."""
    virtual = virtual_stage(stage, chunk, num_stages, placement) + step
    if not 0 <= virtual < num_virtual(num_stages, num_chunks, placement):
        return None
    if placement == "both_ways":
        return (num_stages - 1 - virtual if chunk else virtual), chunk
    return home(virtual, num_stages, placement)


def needs(
    action: Action, stage: int, num_stages: int, num_chunks: int, placement: Placement = "loop"
) -> list[tuple[int, Action]]:
    """(stage, action) pairs that must be done before ``action`` on ``stage``.

    The next stage's backward is named "B"; "I" of the same microbatch and chunk does as well.
    """
    microbatch, chunk = action.microbatch, action.chunk
    if action.kind == "F":
        before = neighbour(stage, chunk, -1, num_stages, num_chunks, placement)
        return [] if before is None else [(before[0], Action("F", microbatch, before[1]))]
    if action.kind == "W":
        return [(stage, Action("I", microbatch, chunk))]
    found = [(stage, Action("F", microbatch, chunk))]
    later = neighbour(stage, chunk, 1, num_stages, num_chunks, placement)
    if later is not None:
        found.append((later[0], Action("B", microbatch, later[1])))
    return found
