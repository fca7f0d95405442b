"""What a timeline says: breakdown, utilisation, bubble, contention.  Works from a run folder alone."""

from simcore.analysis.breakdown import Breakdown, break_down
from simcore.analysis.critical_path import CriticalPath, critical_path
from simcore.analysis.intervals import Intervals
from simcore.analysis.metrics import Throughput, throughput
from simcore.analysis.step import RankStep, StepAnalysis, analyse
from simcore.analysis.totals import Total

__all__ = [
    "Breakdown",
    "CriticalPath",
    "Intervals",
    "RankStep",
    "StepAnalysis",
    "Throughput",
    "Total",
    "analyse",
    "break_down",
    "critical_path",
    "throughput",
]
