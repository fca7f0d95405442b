"""What the rest of the program asks about a schedule.  Each stands in a file of ``kinds/``, which says it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache

from simcore.errors import InputError, SimcoreError
from simcore.graph.schedules.actions import Placement, Schedule
from simcore.graph.schedules.validate import validate_schedule
from simcore.records import dataclass
from simcore.registry import Registry, mistake_in


@dataclass(frozen=True)
class ScheduleKind:
    """A schedule by ``name``, as ``parallel.schedule`` says it.

    ``order``: what each stage does, of (stages, microbatches, chunks of a stage, microbatches that a chunk
    takes at once; 0: as many as there are stages); InputError for numbers that cannot be.
    ``placement``: how chunks lie on stages; ``num_chunks`` that a stage has (0: as many as asked for).
    ``overlaps_passes``: a forward and a backward that stand side by side hide each other's exchanges of
    tokens.  ``message_by_message``: torch.distributed.pipelining sends message by message even with one chunk
    a stage.  ``known_as``: a regular expression over what tables call it; ``otherwise``: the schedule that
    goes by the same words where two whole copies of the parameters cannot be.  ``proven``: tests play it
    out for many sizes (tests/graph/test_schedules.py), so that a job need not; InputError for an ``order``
    of other arguments.
    """

    name: str
    order: Callable[[int, int, int, int], Schedule]
    placement: Placement = "loop"
    num_chunks: int = 0
    overlaps_passes: bool = False
    message_by_message: bool = False
    known_as: str = ""
    otherwise: str = ""
    proven: bool = False

    def __post_init__(self) -> None:
        try:
            signature = inspect.signature(self.order)
            signature.bind(1, 1, 1, 0)
        except TypeError:
            raise InputError(
                f"schedule {self.name!r}: order gets (stages, microbatches, chunks, group);"
                f" this one takes {signature}"
            ) from None

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

    def actions(self, stages: int, microbatches: int, chunks: int, group: int) -> Schedule:
        """What each stage does, of the numbers that ``order`` takes.

        Errors: InputError for numbers that cannot be, or an order that cannot run, with the grid.
        """
        if not self.proven:
            _check_order(self, stages, microbatches, chunks, group)
        return self.order(stages, microbatches, chunks, group)

    def check_chunks(self, num_chunks: int) -> None:
        """InputError unless a stage can have so many chunks."""
        if self.num_chunks and num_chunks != self.num_chunks:
            count = {1: "one chunk", 2: "two chunks"}.get(self.num_chunks, f"{self.num_chunks} chunks")
            each = " of each copy" if self.copies > 1 else ""
            raise InputError(
                f"parallel.virtual_stages={num_chunks}: {self.name} has {count}{each} per stage; nearest:"
                f" {self.num_chunks}"
            )


@lru_cache(maxsize=64)  # edits of a description ask stage by stage
def _check_order(kind: ScheduleKind, stages: int, microbatches: int, chunks: int, group: int) -> None:
    file = inspect.unwrap(kind.order).__code__.co_filename if inspect.isfunction(kind.order) else "its file"
    called = f"schedule {kind.name!r} of {stages} stages, {microbatches} microbatches and {chunks} chunks"
    try:
        schedule = kind.order(stages, microbatches, chunks, group)
        validate_schedule(schedule, kind.placement, (stages, microbatches, chunks))
    except SimcoreError as error:
        raise InputError(f"{called} ({file}): {str(error).removeprefix('schedule: ')}") from error
    except Exception as error:
        raise InputError(f"{called}: {mistake_in(file, error)}") from error


#: Schedules by name.
SCHEDULES: Registry[ScheduleKind] = Registry("schedule", "simcore.graph.schedules.kinds")


def register(kind: ScheduleKind) -> ScheduleKind:
    """Make a schedule known."""
    return SCHEDULES.register(kind.name, kind)
