"""From a published metric to seconds per step, by each source's own convention."""

from __future__ import annotations

import re
from typing import Final

from simcore.errors import InputError
from simcore.hardware.specs import GpuSpec
from workloads.jobs.published.row import RunRow
from workloads.jobs.published.samples import samples_step_s
from workloads.jobs.published.words import recompute_of
from workloads.models.flops import model_flops
from workloads.models.model import AnyModel
from workloads.models.spec import transformer_of


def measured_step_s(row: RunRow, model: AnyModel, gpu: GpuSpec) -> float:
    """Seconds per step: the table's own conversion (``step_time_s_derived``) where it has one.

    Errors: InputError for an unknown metric or a value that is not positive.
    """
    if row.counts_samples:
        return samples_step_s(row)
    if row.says("step_time_s_derived"):
        seconds = row.number("step_time_s_derived")
        if seconds > 0:
            return seconds
    return converted_step_s(row, model, gpu)


#: What a metric measures, by the words of its name.
_QUANTITIES: Final = (
    ("mfu", r"\bmfu|model[ _]flops?[ _]util"),
    ("hfu", r"\bhfu|hardware[ _]flops?[ _]util"),
    ("flops", r"[tp]flop|teraflop|petaflop"),
    ("tokens", r"tok(en)?s?\b|\btgs\b"),
    ("samples", r"samples?\b|seq(uence)?s?\b|images?\b|examples?\b"),
    ("steps", r"\b(steps?|iter(ation)?s?|it) per s"),
    ("seconds", r"time|\bm?s(ec(ond)?s?)?\b|milliseconds?"),
)

_KNOWN: Final = (
    "step_time_s, step_time_ms, steps_per_s, samples_per_s, samples_per_s_per_gpu, tokens_per_s_total,"
    " tokens_per_s_per_gpu, tflops_per_gpu, pflops_total, mfu_percent, hfu_percent"
)


def converted_step_s(row: RunRow, model: AnyModel, gpu: GpuSpec) -> float:
    """Seconds per step from ``metric`` and ``value``.

    Tokens or samples per second: those of a step over the rate, of all GPUs unless "per gpu" is said.
    Flop/s: model flops as Megatron counts them (arXiv 2104.04473: attention in full; with one more forward
    where the row says that recomputation is counted), of a GPU unless "total" is said.  mfu: the same over
    the dense peak of the row's GPU in 16 bits, a percentage where the name or a value above 1 says so; hfu:
    with one more forward where layers are recomputed.
    """
    value = row.number("value")
    if value <= 0:
        raise InputError(f"{row.id}: value {value:g} is not positive")
    said = re.sub(r"[\s_-]+", " ", row.text("metric").lower().replace("/", " per "))
    quantity = next((name for name, pattern in _QUANTITIES if re.search(pattern, said)), "")
    each = row.count("gpus") if re.search(r"per (gpu|device|chip|accelerator)|\btgs\b", said) else 1
    samples = row.number("global_batch")
    if quantity == "seconds":
        return value / 1000 if re.search(r"\bms|milli", said) else value
    if quantity == "steps":
        return 1 / value
    if quantity == "samples":
        return samples / (value * each)
    if quantity == "tokens":
        return samples * model.sequence(row.count("seq")) / (value * each)
    if quantity == "":
        raise InputError(f"{row.id}: unknown metric {row.text('metric')!r}; known: {_KNOWN}")
    flops = model_flops(transformer_of(model, row.id), row.count("seq"), causal_once=False) * samples
    again = (
        recompute_of(row, 2).get("recompute") == "full" if quantity == "hfu" else counts_recomputation(row)
    )
    if again and quantity != "mfu":
        flops *= 4 / 3
    if quantity == "flops":
        unit = 1e15 if "pflop" in said or "petaflop" in said else 1e12
        return flops / (
            value * unit * (1 if re.search(r"total|aggregate|cluster", said) else row.count("gpus"))
        )
    peak = gpu.peak_flops.get("bf16") or gpu.peak_flops["fp16"]
    share = value / 100 if value > 1 or re.search(r"percent|%", said) else value
    return flops / (share * peak * row.count("gpus"))


def counts_recomputation(row: RunRow) -> bool:
    """Whether the row's flop/s count the recomputed forward as work."""
    return bool(re.search(r"counts one recompute|incl\. recompute|hardware flop", _said(row), re.IGNORECASE))


def causal_ratio(row: RunRow, model: AnyModel) -> float:
    """Full over causal flops where the row's flop/s leave the convention open, else 1."""
    if (
        row.counts_samples
        or row.text("step_time_s_derived")
        or not re.search(r"convention not stated", _said(row))
    ):
        return 1.0
    plain, seq = transformer_of(model, row.id), row.count("seq")
    return model_flops(plain, seq, causal_once=False) / model_flops(plain, seq, causal_once=True)


def _said(row: RunRow) -> str:
    return f"{row.text('notes')} {row.text('recompute')}"
