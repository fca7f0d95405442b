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

__all__ = [
    "LEVEL",
    "Evidence",
    "JobFeatures",
    "MeasuredRun",
    "Near",
    "Stated",
    "evidence",
    "interval",
    "job_features",
    "measured_runs",
    "read_runs",
    "with_reaches",
    "workload_features",
    "write_runs",
]
