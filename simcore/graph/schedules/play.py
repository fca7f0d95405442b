"""Schedules played out: when each action ends, who waits, the grid to print, what runs together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from simcore.errors import InputError
from simcore.graph.schedules.actions import Action, Placement, Schedule, needs

#: Units of time by kind when nothing else is known: a backward costs two forwards, each of its halves one.
UNIT_TIMES: Mapping[str, int] = {"F": 1, "B": 2, "I": 1, "W": 1}


def num_chunks(schedule: Schedule) -> int:
    """Model chunks of a stage."""
    return 1 + max((action.chunk for actions in schedule for action in actions), default=0)


def end_times(
    schedule: Schedule,
    placement: Placement = "loop",
    duration: Callable[[int, Action], int] | None = None,
    p2p: int = 0,
) -> list[list[int]]:
    """``[stage][position]``: when each action ends if it starts as soon as it can.

    ``duration(stage, action)`` defaults to :data:`UNIT_TIMES`; ``p2p`` is added to what comes from another
    stage, in the same unit.  InputError when the schedule cannot run.
    """
    cost = duration or (lambda _, action: UNIT_TIMES[action.kind])
    stages, chunks = len(schedule), num_chunks(schedule)
    ended: dict[tuple[int, Action], int] = {}
    times: list[list[int]] = [[] for _ in schedule]
    moved = True
    while moved:
        moved = False
        for stage, actions in enumerate(schedule):
            while len(times[stage]) < len(actions):
                action = actions[len(times[stage])]
                ready = [0, *times[stage][-1:]]
                for where, other in needs(action, stage, stages, chunks, placement):
                    end = ended.get((where, other), ended.get((where, other._replace(kind="I"))))
                    if end is None:
                        break
                    ready.append(end + (p2p if where != stage else 0))
                else:
                    end = max(ready) + cost(stage, action)
                    ended[stage, action] = end
                    times[stage].append(end)
                    moved = True
                    continue
                break
    if any(len(own) < len(actions) for own, actions in zip(times, schedule, strict=True)):
        raise InputError("schedule: some actions can never run")
    return times


def bubble_fraction(
    schedule: Schedule, placement: Placement = "loop", duration: Callable[[int, Action], int] | None = None
) -> float:
    """Idle time of the busiest stage over its work, transfers taking none."""
    cost = duration or (lambda _, action: UNIT_TIMES[action.kind])
    span = max((own[-1] for own in end_times(schedule, placement, duration) if own), default=0)
    work = max(sum(cost(s, a) for a in actions) for s, actions in enumerate(schedule))
    return span / work - 1


def grid(
    schedule: Schedule, placement: Placement = "loop", duration: Callable[[int, Action], int] | None = None
) -> str:
    """Stages as lines, time as columns (of the greatest common unit): who does what when; "." is waiting."""
    cost = duration or (lambda _, action: UNIT_TIMES[action.kind])
    times = end_times(schedule, placement, duration)
    width = max((len(str(action)) for actions in schedule for action in actions), default=1)
    label = len(str(len(schedule) - 1))
    lines = []
    for stage, (actions, ends) in enumerate(zip(schedule, times, strict=True)):
        cells: list[str] = []
        for action, end in zip(actions, ends, strict=True):
            length = cost(stage, action)
            cells += ["."] * (end - length - len(cells))
            cells += [str(action)] + ["-"] * (length - 1)
        row = " ".join(cell.ljust(width, "-" if cell != "." and cell[-1] == "-" else " ") for cell in cells)
        lines.append(f"stage {stage:{label}d}  {row}".rstrip())
    return "\n".join(lines)


def overlapped_pairs(actions: Sequence[Action]) -> dict[int, int]:
    """Positions of forwards whose next action is a whole backward of another microbatch, and of those.

    Schedules that overlap passes run the two together: exchanges of the one behind compute of the other.
    """
    found: dict[int, int] = {}
    taken = -1
    for at, (first, second) in enumerate(pairwise(actions)):
        kinds = first.kind + second.kind
        if at > taken and kinds == "FB" and first.microbatch != second.microbatch:
            found[at] = taken = at + 1
    return found
