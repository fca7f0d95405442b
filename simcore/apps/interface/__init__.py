"""Python in five lines: what the commands do, as functions that answer with objects.

``import simcore`` offers the names below; they are imported when they are first asked for.  Each goes the
way of the command of its name, so that numbers are the same: ``describe`` and ``simulate`` that of
``run_sim.py``, ``trace`` of ``trace_workload.py``, ``replay``, ``plan`` and ``diagnose`` of theirs.
"""

from simcore.apps.interface.diagnoses import DiagnosedRun, diagnose
from simcore.apps.interface.jobs import JobOnCluster, describe, load, trace
from simcore.apps.interface.plans import ChosenPlan, plan
from simcore.apps.interface.replays import ReplayedRecording, replay
from simcore.apps.interface.runs import SimulatedRun, open_run, simulate

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
