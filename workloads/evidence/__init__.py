"""What is known of a prediction: misses of measured runs like it, as a band around its step time."""

from workloads.evidence.band import (
    LEVEL,
    Evidence,
    Near,
    Stated,
    evidence,
    interval,
    with_reaches,
)
from workloads.evidence.features import JobFeatures, job_features, workload_features
from workloads.evidence.runs import MeasuredRun, measured_runs, read_runs, write_runs
from workloads.evidence.siblings import Siblings, siblings, siblings_of

__all__ = [
    "LEVEL",
    "Evidence",
    "JobFeatures",
    "MeasuredRun",
    "Siblings",
    "Near",
    "Stated",
    "evidence",
    "interval",
    "job_features",
    "measured_runs",
    "read_runs",
    "siblings",
    "siblings_of",
    "with_reaches",
    "workload_features",
    "write_runs",
]
