"""The JSON object of a run.  Its keys are a contract: add none, rename none."""

from __future__ import annotations

from pathlib import Path

from simcore.analysis.step import StepAnalysis
from simcore.report.asked import job_object
from simcore.timeline.info import RunInfo


def json_object(info: RunInfo, analysis: StepAnalysis, timeline: Path, wall_s: float) -> dict[str, object]:
    """What ``--json`` prints.

    Seconds, bytes, tokens per second and Tflop/s per GPU.  ``breakdown_s`` is the mean over all ranks;
    ``mfu`` and ``model_tflops_per_gpu`` count causal attention once (:mod:`simcore.analysis.metrics`);
    ``peak_memory_bytes`` is the fullest GPU's; ``timeline`` is the Parquet file.  ``band`` is that of the
    step time (null in folders of before), ``nearest`` the measured runs most like the job: fields as in
    :class:`simcore.timeline.info.StepBand` and :class:`simcore.timeline.info.NearestRun`.  ``job`` is the
    complete question (:func:`simcore.report.asked.job_object`), of which ``parallel`` and ``training`` stand
    at the top, too; ``assumed`` is what of it was left open: key, value, why.
    """
    rates = analysis.throughput
    job = job_object(info)
    return {
        "step_time_s": analysis.step_s,
        "band": None if info.band is None else info.band.model_dump(mode="json"),
        "nearest": [run.model_dump(mode="json") for run in info.nearest],
        "breakdown_s": analysis.breakdown_s(),
        "mfu": rates.mfu,
        "model_tflops_per_gpu": rates.model_tflops_per_gpu,
        "tokens_per_s": rates.tokens_per_s,
        "peak_memory_bytes": max((row.peak for row in info.memory), default=0),
        "gpus": info.workload.world_size,
        "rank_classes": info.num_rank_classes,
        "engine_events": info.engine_events,
        "wall_s": wall_s,
        "timeline": str(timeline),
        "warnings": list(info.warnings),
        "job": job,
        "parallel": job["parallel"],
        "training": job["training"],
        "assumed": [one.model_dump(mode="json") for one in info.assumed],
    }
