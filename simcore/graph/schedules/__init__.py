"""Pipeline schedules as data: per stage a list of actions, validated, printed as a grid, made into graphs."""

from simcore.graph.schedules.actions import (
    Action,
    Placement,
    Schedule,
    home,
    needs,
    neighbour,
    num_virtual,
    virtual_stage,
)
from simcore.graph.schedules.kind import SCHEDULES, ScheduleKind
from simcore.graph.schedules.kinds.dual_pipe import dual_pipe
from simcore.graph.schedules.kinds.dual_pipe_v import dual_pipe_v
from simcore.graph.schedules.kinds.gpipe import gpipe
from simcore.graph.schedules.kinds.one_f_one_b import interleaved_one_f_one_b, one_f_one_b
from simcore.graph.schedules.kinds.zb_v import zb_v
from simcore.graph.schedules.kinds.zero_bubble import zero_bubble
from simcore.graph.schedules.play import bubble_fraction, end_times, grid, overlapped_pairs
from simcore.graph.schedules.validate import validate_schedule

__all__ = [
    "SCHEDULES",
    "Action",
    "Placement",
    "Schedule",
    "ScheduleKind",
    "bubble_fraction",
    "dual_pipe",
    "dual_pipe_v",
    "end_times",
    "gpipe",
    "grid",
    "home",
    "interleaved_one_f_one_b",
    "needs",
    "neighbour",
    "num_virtual",
    "one_f_one_b",
    "overlapped_pairs",
    "validate_schedule",
    "virtual_stage",
    "zb_v",
    "zero_bubble",
]
