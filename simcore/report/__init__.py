"""What a run shows: a summary, a JSON object, a Perfetto file, a picture.  Works from a run folder alone."""

from simcore.report.json_object import json_object
from simcore.report.kineto import write_kineto
from simcore.report.perfetto import default_ranks, write_perfetto
from simcore.report.plot import write_plot
from simcore.report.summary import critical_path_tables, summary

__all__ = [
    "critical_path_tables",
    "default_ranks",
    "json_object",
    "summary",
    "write_kineto",
    "write_perfetto",
    "write_plot",
]
