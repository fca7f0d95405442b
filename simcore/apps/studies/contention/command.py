"""The command ``contention_study``: slowdowns beside communication, predicted against recorded ones."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simcore.apps.replay.levels import play_level, recorded_cluster
from simcore.apps.studies.contention.published import published_rows
from simcore.apps.studies.contention.rows import TraceRows, learned_times, trace_rows
from simcore.apps.studies.contention.summary import ECHO, noise_floor, scores, step_effect, study_text
from simcore.errors import InputError, SimcoreError
from simcore.interference import LearnedInterference, load_interference
from simcore.interference.train import train, without_kernels, without_trace
from workloads.imports import ImportedJob, import_traces

_PURPOSE = "Kernels beside communication: predicted slowdown against recorded and published ones."

_MOST_SMS_PER_CHANNEL = 8


def contention_study(argv: Sequence[str]) -> int:
    """``[TRACES...] [--cluster NAME] [--learned FILE] [--sms-per-channel N] [--json]``: the exit code."""
    parser = argparse.ArgumentParser(prog="contention_study.py", description=_PURPOSE)
    parser.add_argument("traces", nargs="*", type=Path, metavar="TRACE", help="files or folders, a job each")
    parser.add_argument("--cluster", metavar="NAME|FILE", help="for traces that name no GPU")
    parser.add_argument(
        "--learned", metavar="FILE", type=Path, help="a learned interference; default: cross-validated"
    )
    parser.add_argument("--steps", action="store_true", help="also replay the steps with shared GPUs")
    parser.add_argument(
        "--sms-per-channel", type=float, default=1.0, metavar="N", help="what if a channel took N SMs"
    )
    parser.add_argument("--json", action="store_true", help="one object on stdout")
    options = parser.parse_args(argv)
    try:
        if not 0 <= options.sms_per_channel <= _MOST_SMS_PER_CHANNEL:
            wanted = f"between 0 and {_MOST_SMS_PER_CHANNEL}, not {options.sms_per_channel:g}"
            raise InputError(f"--sms-per-channel must be {wanted}")
        model = load_interference(options.learned) if options.learned is not None else None
        found, skipped = _read(options.traces, options.cluster, options.sms_per_channel)
        learned, how = _learned([trace for trace, _, _ in found], model)
    except SimcoreError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    study = {
        "published": [row.as_dict() for row in published_rows()],
        "echo_within": {name: list(shares) for name, shares in ECHO.items()},
        "learned": how,
        "traces": [
            _trace_object(trace, times, _steps(job, cluster) if options.steps else [])
            for (trace, job, cluster), times in zip(found, learned, strict=True)
        ],
        "skipped": skipped,
    }
    print(json.dumps(study) if options.json else study_text(study))
    return 0


def calibrate_interference(argv: Sequence[str]) -> int:
    """``--interference TRACES... --out FILE [--cluster NAME]``: learn slowdowns.  Returns the exit code."""
    parser = argparse.ArgumentParser(prog="calibrate.py", description=calibrate_interference.__doc__)
    parser.add_argument("--interference", nargs="+", type=Path, metavar="TRACE", required=True)
    parser.add_argument("--out", type=Path, metavar="FILE", required=True, help="where to write the model")
    parser.add_argument("--cluster", metavar="NAME|FILE", help="for traces that name no GPU")
    options = parser.parse_args(argv)
    try:
        found, skipped = _read(options.interference, options.cluster)
        rows = [row for trace, _, _ in found for row in trace.training_rows()]
        names = sorted({row.trace for row in rows})
        model = train(rows, "scripts/calibrate.py --interference on " + ", ".join(names))
        model.write(options.out)
    except SimcoreError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    for line in skipped:
        _say(f"left out {line['trace']}: {line['reason']}")
    print(f"{options.out}: {len(model.trees)} trees from {model.num_rows} kernels of {len(names)} traces")
    return 0


def _read(
    traces: Sequence[Path], cluster: str | None, sms_per_channel: float = 1.0
) -> tuple[list[tuple[TraceRows, ImportedJob, str | None]], list[dict[str, str]]]:
    """The rows of each trace set; those that cannot be compared with the reason."""
    found: list[tuple[TraceRows, ImportedJob, str | None]] = []
    skipped = []
    for path in traces:
        _say(f"{path.name}: reading")
        job = import_traces([path])
        named = None if any(rank.gpu for rank in job.ranks) else cluster
        try:
            spec = recorded_cluster(job, named, max((rank.number for rank in job.ranks), default=0) + 1)
        except InputError as error:
            skipped.append({"trace": path.name, "reason": str(error)})
            continue
        name = path.name.split(".")[0]
        rows = trace_rows(name, job, spec, _progress(path.name), sms_per_channel)
        if rows.rows:
            found.append((rows, job, named))
        else:
            skipped.append(
                {"trace": path.name, "reason": "no kernel beside communication was seen alone too"}
            )
    return found, skipped


def _learned(
    traces: list[TraceRows], model: LearnedInterference | None
) -> tuple[list[dict[str, list[float]]], str]:
    """Times by trace as learned predictors tell them, by how they were validated, and what to know of it."""
    if model is not None:
        return [{"learned": learned_times(trace, model)} for trace in traces], f"as trained: {model.source}"
    training = [row for trace in traces for row in trace.training_rows()]
    try:
        _say("learning, cross-validated by trace and by kernel")
        by_kernel = without_kernels(training)
        times = [
            {
                "learned, trace left out": learned_times(trace, without_trace(training, trace.trace)),
                "learned, kernel left out": [
                    row.learned_ps(by_kernel[row.kernel.name].of_features(row.features))
                    if row.kernel.name in by_kernel
                    else float(row.kernel.alone_ps)
                    for row in trace.rows
                ],
            }
            for trace in traces
        ]
    except InputError as error:
        return [{} for _ in traces], f"none: {error}"
    return times, "cross-validated: models that never saw the trace, or that never saw the kernel"


def _trace_object(
    trace: TraceRows, learned: dict[str, list[float]], steps: list[dict[str, Any]]
) -> dict[str, Any]:
    shared = [float(row.predicted_ps) for row in trace.rows]
    alone = [float(row.kernel.alone_ps) for row in trace.rows]
    models = {"shared resources": shared, "no contention": alone, **learned}
    return {
        "trace": trace.trace,
        "gpu": trace.gpu.name,
        "kernels": len(trace.rows),
        "never_alone": trace.pairs.unmatched,
        "beside_compute": trace.pairs.others,
        "repeats_within": list(noise_floor(trace)),
        "scores": {
            name: [found.as_dict() for found in scores(trace, times)] for name, times in models.items()
        },
        "step_effect": {name: step_effect(trace, times) for name, times in models.items()},
        "steps": steps,
        "rows": [
            {
                "rank": row.kernel.rank, "step": row.kernel.step, "name": row.kernel.name[:80],
                "class": row.kernel.category, "blocks": row.kernel.blocks, "sms_held": round(row.sms, 2),
                "alone_us": row.kernel.alone_ps / 1e6, "recorded_us": row.kernel.recorded_ps / 1e6,
                "predicted_us": row.predicted_ps / 1e6,
                "learned_us": {name: times[i] / 1e6 for name, times in learned.items()},
            }
            for i, row in enumerate(trace.rows)
        ],
    }  # fmt: skip


def _steps(job: ImportedJob, cluster: str | None) -> list[dict[str, Any]]:
    """Recorded steps beside a replay whose kernels share the GPU with simulated communication."""
    try:
        replayed = play_level(job, "communication", cluster)
    except InputError as error:
        return [{"error": str(error)}]
    return [
        {
            "rank": step.rank, "step": step.step, "recorded_s": step.recorded.span,
            "predicted_s": step.replayed.span,
        }
        for step in replayed.steps()
    ]  # fmt: skip


def _progress(name: str) -> Any:
    last = -1

    def report(done: int, total: int) -> None:
        nonlocal last
        percent = 100 * done // total
        if percent // 25 != last // 25:
            last = percent
            _say(f"{name}: {percent}% of {total} kernels")

    return report


def _say(text: str) -> None:
    print(text, file=sys.stderr)
