"""What a run shows: a summary, a JSON object, a Perfetto file, a picture.  Works from a run folder alone."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simcore.report.kineto import write_kineto
    from simcore.report.perfetto import default_ranks, write_perfetto
    from simcore.report.plot import write_plot
    from simcore.report.run_object import json_object
    from simcore.report.summary_tables import critical_path_tables, summary

__all__ = [
    "critical_path_tables",
    "default_ranks",
    "json_object",
    "summary",
    "write_kineto",
    "write_perfetto",
    "write_plot",
]

_LATER = {
    "critical_path_tables": "summary_tables",
    "default_ranks": "perfetto",
    "json_object": "run_object",
    "summary": "summary_tables",
    "write_kineto": "kineto",
    "write_perfetto": "perfetto",
    "write_plot": "plot",
}


def __getattr__(name: str) -> Any:
    """Import when it is used what not every run shows: tables need rich, which takes a while."""
    if name in _LATER:
        return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
