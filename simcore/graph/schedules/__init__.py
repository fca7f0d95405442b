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
from simcore.graph.schedules.dual_pipe import dual_pipe, dual_pipe_v, overlapped_pairs
from simcore.graph.schedules.graphs import kernel_body, pipeline_graph
from simcore.graph.schedules.orders import gpipe, interleaved_one_f_one_b, one_f_one_b
from simcore.graph.schedules.play import bubble_fraction, end_times, grid
from simcore.graph.schedules.validate import validate_schedule
from simcore.graph.schedules.zero_bubble import zb_v, zero_bubble

__all__ = [
    "Action",
    "Placement",
    "Schedule",
    "bubble_fraction",
    "dual_pipe",
    "dual_pipe_v",
    "end_times",
    "gpipe",
    "grid",
    "home",
    "interleaved_one_f_one_b",
    "kernel_body",
    "needs",
    "neighbour",
    "num_virtual",
    "one_f_one_b",
    "overlapped_pairs",
    "pipeline_graph",
    "validate_schedule",
    "virtual_stage",
    "zb_v",
    "zero_bubble",
]
