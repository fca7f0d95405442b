"""Whether a schedule can run; if not, where it stops."""

from __future__ import annotations

from collections import Counter

from simcore.errors import InputError
from simcore.graph.schedules.actions import Action, Placement, Schedule, needs
from simcore.graph.schedules.play import num_chunks


def validate_schedule(schedule: Schedule, placement: Placement = "loop") -> None:
    """Play a schedule out.  InputError with the grid when an action is missing, repeated or can never run."""
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
    """One line per stage; the action that cannot run stands in brackets."""
    lines = []
    for stage, actions in enumerate(schedule):
        cells = [f"[{a}]" if stuck.get(stage) == i else str(a) for i, a in enumerate(actions)]
        lines.append(f"  stage {stage}: {' '.join(cells)}")
    return "\n".join(lines)
