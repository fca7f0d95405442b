"""GPipe: all forwards, then all backwards."""

from __future__ import annotations

from simcore.graph.schedules.actions import Action, Schedule
from simcore.graph.schedules.kind import ScheduleKind, register
from simcore.graph.schedules.orders import check_counts


def gpipe(num_stages: int, num_microbatches: int, num_chunks: int = 1) -> Schedule:
    """All forwards, then all backwards (GPipe, arXiv 1811.06965).

    With several chunks one after the other, breadth first, and backwards in the opposite order of forwards
    (arXiv 2211.05953; ``ScheduleLoopedBFS`` of PyTorch).
    """
    check_counts(num_stages, num_microbatches, num_chunks)
    forward = [Action("F", m, chunk) for chunk in range(num_chunks) for m in range(num_microbatches)]
    backward = [action._replace(kind="B") for action in forward]
    if num_chunks > 1:
        backward.reverse()
    return [[*forward, *backward] for _ in range(num_stages)]


register(
    ScheduleKind("gpipe", lambda p, m, chunks, _: gpipe(p, m, chunks), known_as=r"\bgpipe\b", proven=True)
)
