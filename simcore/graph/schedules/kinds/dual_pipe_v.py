"""DualPipeV (Qi et al.): DualPipe cut in half.

Stage s holds two chunks of one model, s from its beginning and s from its end, so that the first stage has
embedding and head, and the last turns round.  Microbatches go down the V and come back up.
"""

from __future__ import annotations

from simcore.errors import InputError
from simcore.graph.schedules.actions import Action, Schedule
from simcore.graph.schedules.kind import ScheduleKind, register
from simcore.graph.schedules.orders import VWriter, check_counts


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
    return [v_stage(num_stages, num_microbatches, stage) for stage in range(num_stages)]


def v_stage(num_stages: int, num_microbatches: int, stage: int) -> list[Action]:
    """What a stage of the V does."""
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


register(
    ScheduleKind(
        "dualpipe_v", lambda p, m, *_: dual_pipe_v(p, m), placement="v", num_chunks=2, overlaps_passes=True,
        known_as=r"dual-?pipe.?v\b", proven=True,
    )
)  # fmt: skip
