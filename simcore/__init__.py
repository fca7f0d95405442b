"""Simulator of distributed training: an execution graph in, a timeline out.

    import simcore

    job = simcore.describe("llama3-70b", cluster="h100-256", parallel={"tp": 8, "pp": 4})
    print(simcore.simulate(job).step_time_s)

The names are those of :mod:`simcore.apps.interface`; they are imported when they are first asked for, so that
parts of the package start without all of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simcore.apps.interface import (
        ChosenPlan,
        DiagnosedRun,
        JobOnCluster,
        ReplayedRecording,
        SimulatedRun,
        describe,
        diagnose,
        load,
        open_run,
        plan,
        replay,
        simulate,
        trace,
    )

__version__ = "0.1.0"

__all__ = [
    "ChosenPlan",
    "DiagnosedRun",
    "JobOnCluster",
    "ReplayedRecording",
    "SimulatedRun",
    "describe",
    "diagnose",
    "load",
    "open_run",
    "plan",
    "replay",
    "simulate",
    "trace",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("simcore.apps.interface"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
