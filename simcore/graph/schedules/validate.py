"""Whether a schedule can run; if not, where it stops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product
from typing import Final

from simcore.errors import InputError
from simcore.graph.schedules.actions import Action, Placement, Schedule, needs
from simcore.graph.schedules.play import num_chunks

#: Cells of a stage that a message shows.
_SHOWN: Final = 48
_KINDS: Final[tuple[str, ...]] = ("F", "B", "I", "W")
_PARTS: Final = {"F": "forwards", "I": "backwards (B, or I and W)", "W": "gradients of weights (B or W)"}


def validate_schedule(
    schedule: Schedule, placement: Placement = "loop", size: tuple[int, int, int] | None = None
) -> None:
    """Play a schedule out.  InputError with the grid when an action is missing, repeated or can never run.

    ``size``: (stages, microbatches, chunks of a stage) that it must be for; None: whatever it is for.
    """
    for stage, actions in enumerate(schedule):
        cells: Sequence[object] = actions  # whatever a file has put there
        for position, cell in enumerate(cells):
            if not isinstance(cell, Action) or cell.kind not in _KINDS:
                raise InputError(
                    f"schedule: stage {stage}, position {position}: {cell} is no Action of kind F, B, I, W"
                    f"\n{_listed(schedule, {stage: position})}"
                )
    if size is not None:
        _check_size(schedule, placement, *size)
    num_stages, chunks = len(schedule), num_chunks(schedule)
    expected = {part for action in (schedule[0] if schedule else ()) for part in _parts(action)}
    for stage, actions in enumerate(schedule):
        counted = Counter(part for action in actions for part in _parts(action))
        repeated = {action for action, count in counted.items() if count > 1}
        wrong = repeated | (set(counted) ^ expected)
        if wrong:
            action = _as_written(min(wrong), schedule)
            what = "more than once" if repeated & set(_parts(action)) else "on some stages only"
            raise InputError(f"schedule: {action} stands {what} (stage {stage})\n{_listed(schedule, {})}")
    done: set[tuple[int, Action]] = set()
    at = dict.fromkeys(range(num_stages), 0)
    moved = True
    while moved:
        moved = False
        for stage, actions in enumerate(schedule):
            while at[stage] < len(actions):
                action = actions[at[stage]]
                if not done.issuperset(needs(action, stage, num_stages, chunks, placement)):
                    break
                done.add((stage, action))
                if action.kind == "I":
                    done.add((stage, action._replace(kind="B")))
                at[stage] += 1
                moved = True
    stuck = {stage: actions[at[stage]] for stage, actions in enumerate(schedule) if at[stage] < len(actions)}
    if stuck:
        missing = {
            stage: [n for n in needs(action, stage, num_stages, chunks, placement) if n not in done]
            for stage, action in stuck.items()
        }
        # A stage that waits for itself is the cause; the others only wait for it.
        stage = min(stuck, key=lambda s: (all(where != s for where, _ in missing[s]), s))
        why = ", ".join(f"{other} of stage {where}" for where, other in missing[stage])
        raise InputError(
            f"schedule: stage {stage}, position {at[stage]}: {stuck[stage]} can never run; it needs {why}\n"
            f"{_listed(schedule, at)}"
        )


def _check_size(
    schedule: Schedule, placement: Placement, num_stages: int, num_microbatches: int, chunks: int
) -> None:
    """InputError unless each stage has every microbatch on every chunk; of two copies on one of them."""
    if len(schedule) != num_stages:
        raise InputError(
            f"schedule: it has {len(schedule)} stages instead of {num_stages}\n{_listed(schedule, {})}"
        )
    each, numbers = (1, 2) if placement == "both_ways" else (chunks, chunks)
    for stage, actions in enumerate(schedule):
        for position, action in enumerate(actions):
            if not (0 <= action.microbatch < num_microbatches and 0 <= action.chunk < numbers):
                raise InputError(
                    f"schedule: stage {stage}, position {position}: {action} is of microbatch"
                    f" {action.microbatch} and chunk {action.chunk}, counted from 0, of {num_microbatches}"
                    f" and {numbers}\n{_listed(schedule, {stage: position})}"
                )
        counted = Counter[tuple[str, int]](
            (part.kind, part.microbatch) for action in actions for part in _parts(action)
        )
        for (kind, what), microbatch in product(_PARTS.items(), range(num_microbatches)):
            found = counted[kind, microbatch]
            if found != each:
                raise InputError(
                    f"schedule: stage {stage} has {found} {what} of microbatch {microbatch} instead of {each}"
                    f"\n{_listed(schedule, {})}"
                )


def _parts(action: Action) -> tuple[Action, ...]:
    """A whole backward counts as both of its parts."""
    if action.kind != "B":
        return (action,)
    return action._replace(kind="I"), action._replace(kind="W")


def _as_written(part: Action, schedule: Schedule) -> Action:
    """The action that the schedule has for a part."""
    whole = part._replace(kind="B")
    return whole if part.kind in "IW" and any(whole in actions for actions in schedule) else part


def _listed(schedule: Schedule, stuck: dict[int, int]) -> str:
    """One line per stage; the action that cannot run stands in brackets, far ones are left out."""
    lines = []
    for stage, actions in enumerate(schedule):
        cells = [f"[{a}]" if stuck.get(stage) == i else str(a) for i, a in enumerate(actions)]
        first = max(0, min(stuck.get(stage, 0) - _SHOWN // 2, len(cells) - _SHOWN))
        shown = [
            *["..."][: first and 1],
            *cells[first : first + _SHOWN],
            *["..."][: first + _SHOWN < len(cells)],
        ]
        lines.append(f"  stage {stage}: {' '.join(shown)}")
    return "\n".join(lines)
