"""The contention study: recorded and published slowdowns beside predicted ones, as one object."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simcore.apps.progress import say
from simcore.apps.replay.levels import play_level
from simcore.apps.studies.contention.bands import bands
from simcore.apps.studies.contention.grids import product_grids
from simcore.apps.studies.contention.groups import agreement, group_rows, groups_text
from simcore.apps.studies.contention.left_out import Case, left_out
from simcore.apps.studies.contention.overlap import overlap_rows
from simcore.apps.studies.contention.published import published_rows
from simcore.apps.studies.contention.rows import BesideRow, TraceRows, learned_times, read_trace_sets
from simcore.apps.studies.contention.summary import (
    ECHO,
    SHORT_US,
    noise_floor,
    overlap_scores,
    scores,
    step_effect,
)
from simcore.apps.studies.contention.worth import worth
from simcore.errors import InputError
from simcore.files import whole_text
from simcore.interference import LearnedInterference, load_interference
from simcore.interference.train import without_kernels, without_trace
from simcore.units import PS_PER_US
from workloads.imports import ImportedJob

_MOST_SMS_PER_CHANNEL = 8


def contention_object(
    traces: Sequence[Path], cluster: str | None, learned: Path | None, *, steps: bool, sms_per_channel: float,
    overlap: Path | None = None, without: bool = False, table: Path | None = None,
    mechanisms: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """The study of ``traces``, a job each, as ``--json`` shows it.

    ``cluster`` is for traces that name no GPU (see :func:`read_trace_sets`), the first also for such rows of
    ``overlap``, a table of kernels alone and beside communication; ``learned`` a file of a learned
    interference (None: learned from the traces, cross-validated); ``steps`` also replays them; a channel
    takes ``sms_per_channel`` SMs; ``without`` also fits the model's numbers without each trace,
    ``mechanisms`` predicts without each mechanism; ``table`` is where to write the traces' own kernels alone
    and beside communication.
    Errors: InputError for what cannot be read, or a number of SMs that no channel takes.
    """
    if not 0 <= sms_per_channel <= _MOST_SMS_PER_CHANNEL:
        wanted = f"between 0 and {_MOST_SMS_PER_CHANNEL}, not {sms_per_channel:g}"
        raise InputError(f"--sms-per-channel must be {wanted}")
    model = load_interference(learned) if learned is not None else None
    found, skipped = read_trace_sets(traces, cluster, sms_per_channel)
    times, how = _learned([trace for trace, _, _ in found], model)
    predicted = [_models(trace, by_model) for (trace, _, _), by_model in zip(found, times, strict=True)]
    own = [row for trace, job, _ in found for row in group_rows(trace, job)] if table is not None else []
    if table is not None:
        whole_text(table, groups_text(own))
    rows, refused = (
        overlap_rows(overlap, cluster and cluster.split(",")[0]) if overlap is not None else ([], [])
    )
    cases = _cases(rows, [trace for trace, _, _ in found]) if without or mechanisms else {}
    if without:
        say("fitting the model's numbers without each trace")
    return {
        "rows": [row.as_dict() for row in rows],
        "overlap": overlap_scores(rows),
        "agreement": agreement(own, overlap) if own and overlap is not None and overlap.is_file() else {},
        "left_out": {what: left_out(own) for what, own in cases.items()} if without else {},
        "worth": {what: worth(own) for what, own in cases.items()} if mechanisms else {},
        "published": [row.as_dict() for row in published_rows()],
        "echo_within": {name: list(shares) for name, shares in ECHO.items()},
        "learned": how,
        "traces": [
            _trace_object(trace, models, band, _steps(job, named) if steps else [])
            | {"grids": product_grids(job, trace.gpu)}
            for (trace, job, named), models, band in zip(
                found, predicted, bands([trace for trace, _, _ in found], predicted), strict=True
            )
        ],
        "skipped": skipped + refused,
    }


def _cases(rows: Sequence[BesideRow], traces: Sequence[TraceRows]) -> dict[str, dict[str, list[Case]]]:
    """Of "table" and "traces" by trace: good rows, kernels that are not short."""
    table: dict[str, list[Case]] = defaultdict(list)
    for row in rows:
        if row.beside is not None and row.quality in ("good", "ok"):
            table[row.trace].append((row.beside, row.recorded_us * PS_PER_US))
    long = {
        trace.trace: [
            (row.beside, float(row.kernel.recorded_ps))
            for row in trace.rows
            if row.kernel.alone_ps >= SHORT_US * PS_PER_US
        ]
        for trace in traces
    }
    return {"table": table, "traces": {name: own for name, own in long.items() if own}}


def _learned(
    traces: list[TraceRows], model: LearnedInterference | None
) -> tuple[list[dict[str, list[float]]], str]:
    """Times by trace as learned predictors tell them, by how they were validated, and what to know of it."""
    if model is not None:
        return [{"learned": learned_times(trace, model)} for trace in traces], f"as trained: {model.source}"
    if not traces:
        return [], "none: no traces to learn from"
    training = [row for trace in traces for row in trace.training_rows()]
    try:
        say("learning, cross-validated by trace and by kernel")
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


def _models(trace: TraceRows, learned: dict[str, list[float]]) -> dict[str, list[float]]:
    """Times of the rows by model, ps."""
    shared = [float(row.predicted_ps) for row in trace.rows]
    alone = [float(row.kernel.alone_ps) for row in trace.rows]
    return {"shared resources": shared, "no contention": alone, **learned}


def _trace_object(
    trace: TraceRows, models: dict[str, list[float]], band: dict[str, Any], steps: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "trace": trace.trace,
        "gpu": trace.gpu.name,
        "kernels": len(trace.rows),
        "never_alone": trace.pairs.unmatched,
        "beside_compute": trace.pairs.others,
        "repeats_within": list(noise_floor(trace)),
        "scores": {
            name: [vars(found) for found in scores(trace, times)] for name, times in models.items()
        },
        "bands": band,
        "step_effect": {name: step_effect(trace, times) for name, times in models.items()},
        "steps": steps,
        "transfers": list(trace.transfers),
        "rows": [
            {
                "id": i, "rank": row.kernel.rank, "step": row.kernel.step, "name": row.kernel.name[:80],
                "class": row.kernel.category, "blocks": row.kernel.blocks, "sms_held": round(row.sms, 2),
                "alone_us": row.kernel.alone_ps / 1e6, "recorded_us": row.kernel.recorded_ps / 1e6,
                "predicted_us": row.predicted_ps / 1e6,
                "learned_us": {
                    name: times[i] / 1e6 for name, times in models.items() if name.startswith("learned")
                },
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
