"""What the rest of the program asks about a schedule.  Each stands in a file of ``kinds/``, which says it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from simcore.errors import InputError
from simcore.graph.schedules.actions import Placement, Schedule
from simcore.registry import Registry


@dataclass(frozen=True)
class ScheduleKind:
    """A schedule by ``name``, as ``parallel.schedule`` says it.

    ``order``: what each stage does, of (stages, microbatches, chunks of a stage, microbatches that a chunk
    takes at once; 0: as many as there are stages); InputError for numbers that cannot be.
    ``placement``: how chunks lie on stages; ``num_chunks`` that a stage has (0: as many as asked for).
    ``overlaps_passes``: a forward and a backward that stand side by side hide each other's exchanges of
    tokens.  ``message_by_message``: torch.distributed.pipelining sends message by message even with one chunk
    a stage.  ``known_as``: a regular expression over what tables call it; ``otherwise``: the schedule that
    goes by the same words where two whole copies of the parameters cannot be.
    """

    name: str
    order: Callable[[int, int, int, int], Schedule]
    placement: Placement = "loop"
    num_chunks: int = 0
    overlaps_passes: bool = False
    message_by_message: bool = False
    known_as: str = ""
    otherwise: str = ""

    @property
    def copies(self) -> int:
        """Copies of each parameter among the stages of a pipeline."""
        return 2 if self.placement == "both_ways" else 1

    @property
    def loops(self) -> bool:
        """Whether chunks go round the stages, so that microbatches advance in groups."""
        return self.placement == "loop"

    @property
    def ends_meet(self) -> bool:
        """Whether the stage that has the embedding has the head, too, however many stages there are."""
        return self.placement != "loop"

    def check_chunks(self, num_chunks: int) -> None:
        """InputError unless a stage can have so many chunks."""
        if self.num_chunks and num_chunks != self.num_chunks:
            count = {1: "one chunk", 2: "two chunks"}.get(self.num_chunks, f"{self.num_chunks} chunks")
            each = " of each copy" if self.copies > 1 else ""
            raise InputError(
                f"parallel.virtual_stages={num_chunks}: {self.name} has {count}{each} per stage; nearest:"
                f" {self.num_chunks}"
            )


#: Schedules by name.
SCHEDULES: Registry[ScheduleKind] = Registry("schedule", "simcore.graph.schedules.kinds")


def register(kind: ScheduleKind) -> ScheduleKind:
    """Make a schedule known."""
    return SCHEDULES.register(kind.name, kind)
