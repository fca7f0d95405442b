"""DeepSeek's DualPipe (arXiv 2412.19437, section 3.2.1).

Every stage holds two chunks, s of one copy of the model and s from the end of another.  Half of the
microbatches enter at the first stage, half at the last one.  A V of p stages folded open is a DualPipe of
2 p: its stages do what those of the V do, in either half.
"""

from __future__ import annotations

from simcore.errors import InputError
from simcore.graph.schedules.actions import Schedule
from simcore.graph.schedules.kind import ScheduleKind, register
from simcore.graph.schedules.kinds.dual_pipe_v import v_stage
from simcore.graph.schedules.orders import check_counts


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
        actions = v_stage(half, from_each_end, min(stage, num_stages - 1 - stage))
        both = [action._replace(chunk=action.chunk ^ behind_middle) for action in actions]
        schedule.append([a._replace(microbatch=a.microbatch + a.chunk * from_each_end) for a in both])
    return schedule


register(
    ScheduleKind(
        "dualpipe", lambda p, m, *_: dual_pipe(p, m), placement="both_ways", num_chunks=1,
        overlaps_passes=True, known_as=r"dual-?pipe", otherwise="dualpipe_v", proven=True,
    )
)  # fmt: skip
