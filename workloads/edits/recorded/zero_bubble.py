"""A schedule with backwards in two parts: weight gradients fill the time in which a stage would wait.

After Qi et al., "Zero Bubble Pipeline Parallelism" (2023), schedule ZB-H1: forwards and input gradients in
the order of 1F1B, weight gradients as late as memory allows.  Here they are placed by playing the schedule
with the stages' own times: a weight gradient runs when it ends before the stage can do anything else, or when
the stage holds as many microbatches as 1F1B's first stage does.
"""

from __future__ import annotations

from collections.abc import Callable

from simcore.graph.schedules import one_f_one_b

#: (stage, kind, microbatch) -> ps; kinds F, B (gradients of inputs) and W (of weights).
Duration = Callable[[int, str, int], int]


def zero_bubble(
    num_stages: int, num_microbatches: int, duration_ps: Duration, p2p_ps: int
) -> list[list[tuple[str, int]]]:
    """By stage the actions ``(kind, microbatch)`` in order."""
    waiting = [[(a.kind, a.microbatch) for a in own] for own in one_f_one_b(num_stages, num_microbatches)]
    late: list[list[int]] = [[] for _ in range(num_stages)]  # weight gradients still to be computed
    held = [0] * num_stages
    free = [0] * num_stages
    ended: dict[tuple[int, str, int], int] = {}
    order: list[list[tuple[str, int]]] = [[] for _ in range(num_stages)]

    def ready(stage: int) -> int | None:
        """When the next forward or backward of a stage could start; None while that is unknown."""
        kind, microbatch = waiting[stage][0]
        source = stage - 1 if kind == "F" else stage + 1
        if not 0 <= source < num_stages:
            return free[stage]
        end = ended.get((source, kind, microbatch))
        return None if end is None else max(free[stage], end + p2p_ps)

    def run(stage: int, kind: str, microbatch: int, start: int) -> None:
        free[stage] = ended[stage, kind, microbatch] = start + duration_ps(stage, kind, microbatch)
        order[stage].append((kind, microbatch))
        held[stage] += {"F": 1, "B": 0, "W": -1}[kind]

    while any(waiting):
        starts = [(ready(stage), stage) for stage in range(num_stages) if waiting[stage]]
        start, stage = min((start, stage) for start, stage in starts if start is not None)
        kind, microbatch = waiting[stage][0]
        full = kind == "F" and held[stage] >= num_stages
        fits = late[stage] and free[stage] + duration_ps(stage, "W", late[stage][0]) <= start
        if late[stage] and (full or fits):
            run(stage, "W", late[stage].pop(0), free[stage])
            continue
        waiting[stage].pop(0)
        run(stage, kind, microbatch, start)
        if kind == "B":
            late[stage].append(microbatch)
    for stage, left in enumerate(late):
        for microbatch in left:
            run(stage, "W", microbatch, free[stage])
    return order
