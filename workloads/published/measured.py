"""From a published metric to seconds per step, by each source's own convention."""

from __future__ import annotations

import re

from simcore.errors import InputError
from simcore.hardware.specs import GpuSpec
from workloads.models.flops import model_flops
from workloads.models.spec import ModelSpec
from workloads.published.row import RunRow


def measured_step_s(row: RunRow, model: ModelSpec, gpu: GpuSpec) -> float:
    """Seconds per step: the table's own conversion (``step_time_s_derived``) where it has one.

    Errors: InputError for an unknown metric or a value that is not positive.
    """
    if row.says("step_time_s_derived"):
        seconds = row.number("step_time_s_derived")
        if seconds > 0:
            return seconds
    return converted_step_s(row, model, gpu)


def converted_step_s(row: RunRow, model: ModelSpec, gpu: GpuSpec) -> float:
    """Seconds per step from ``metric`` and ``value``.

    tokens_per_s_per_gpu, tokens_per_s_total, samples_per_s: the step's tokens or samples over the rate.
    tflops_per_gpu: model flops as Megatron counts them (arXiv 2104.04473: attention in full; with one more
    forward where the row says that recomputation is counted).  mfu_percent: the same over the dense peak of
    the row's GPU in bf16.
    """
    metric, value = row.text("metric"), row.number("value")
    if value <= 0:
        raise InputError(f"{row.id}: value {value:g} is not positive")
    samples, gpus = row.number("global_batch"), row.count("gpus")
    if metric == "step_time_s":
        return value
    if metric == "samples_per_s":
        return samples / value
    if metric == "tokens_per_s_total":
        return samples * row.count("seq") / value
    if metric == "tokens_per_s_per_gpu":
        return samples * row.count("seq") / (value * gpus)
    flops = model_flops(model, row.count("seq"), causal_once=False) * samples
    if metric == "tflops_per_gpu":
        if counts_recomputation(row):
            flops *= 4 / 3
        return flops / (value * 1e12 * gpus)
    if metric == "mfu_percent":
        return flops / (value / 100 * gpu.peak_flops["bf16"] * gpus)
    raise InputError(
        f"{row.id}: unknown metric {metric!r}; known: step_time_s, samples_per_s, tokens_per_s_total,"
        " tokens_per_s_per_gpu, tflops_per_gpu, mfu_percent"
    )


def counts_recomputation(row: RunRow) -> bool:
    """Whether the row's flop/s count the recomputed forward as work."""
    return bool(re.search(r"counts one recompute|incl\. recompute|hardware flop", _said(row), re.IGNORECASE))


def causal_ratio(row: RunRow, model: ModelSpec) -> float:
    """Full over causal flops where the row's flop/s leave the convention open, else 1."""
    if row.text("step_time_s_derived") or not re.search(r"convention not stated", _said(row)):
        return 1.0
    seq = row.count("seq")
    return model_flops(model, seq, causal_once=False) / model_flops(model, seq, causal_once=True)


def _said(row: RunRow) -> str:
    return f"{row.text('notes')} {row.text('recompute')}"
