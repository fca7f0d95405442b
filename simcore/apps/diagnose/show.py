"""A diagnosis for a terminal, and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from textwrap import wrap
from typing import Any, Final

from simcore.apps.diagnose.answer import Diagnosis
from simcore.apps.diagnose.measured import memory_line
from simcore.report.asked import WIDTH, asked_lines
from simcore.units import PS_PER_S, format_time

#: What to look at where a cause has taken longer than expected.
ADVICE: Final = {
    "the clock": "nvidia-smi -q -d CLOCK,POWER,PERFORMANCE under load: power caps, heat, application clocks",
    "matrix products": "shapes that are no multiples of 64, tf32 or fp8 that is off",
    "matrix products beyond it": "shapes that are no multiples of 64, tf32 or fp8 that is off",
    "attention": "which kernel runs: unfused, an old flash-attention, a mask that forbids it",
    "attention beyond it": "which kernel runs: unfused, an old flash-attention",
    "kernels that memory bounds": "fusion that is off (--no-*-fusion, torch.compile, Transformer Engine)",
    "the optimizer's kernels": "fused Adam (apex, torch's fused=True), a distributed optimizer",
    "copies": "batches that are not pinned or not copied ahead, .item() and .cpu() in the loop, offloading",
    "communication takes longer": "nccl-tests beside this size; NCCL_DEBUG=INFO: rails, GPUDirect, algorithm",
    "less communication overlaps": "overlap flags, CUDA_DEVICE_MAX_CONNECTIONS, bucket sizes",
    "waiting for other ranks": "traces of more ranks: who comes last? A slow GPU, uneven stages, experts",
    "no work for the GPU": "the host: dataloader, Python between launches, synchronisations",
}  # fmt: skip
_LESS: Final = {
    "communication takes longer": "communication takes less time",
    "less communication overlaps": "more communication overlaps",
}
_SHOWN: Final = 0.002


def diagnosis_lines(found: Diagnosis) -> Iterator[str]:
    """At most 80 letters each."""
    yield from asked_lines(found.info)
    yield ""
    for line in found.measured.lines:
        yield from wrap(line, WIDTH, subsequent_indent="  ", break_long_words=False)
    yield from wrap(_expected(found), WIDTH, subsequent_indent="  ")
    yield from wrap(_verdict(found), WIDTH, subsequent_indent="  ")
    if line := memory_line(found.measured, found.info):
        yield from wrap(line, WIDTH, subsequent_indent="  ")
    for doubt in found.measured.doubts:
        yield from wrap(f"warning: {doubt}", WIDTH, subsequent_indent="  ")
    if found.causes:
        yield from _causes(found)
    if found.checks:
        yield ""
        yield "what to check, by what it would gain at most (sure: simulated, or in the log)"
        for check in found.checks:
            sure = "sure" if check.certain else ""
            yield f"  {format_time(check.gain_s * PS_PER_S):>9}  {sure:4}  {check.name}"
            yield from wrap(
                check.advice,
                WIDTH,
                initial_indent=" " * 19,
                subsequent_indent=" " * 19,
                break_on_hyphens=False,
            )


def _expected(found: Diagnosis) -> str:
    text = f"expected {format_time(found.info.step_ps)}"
    band = found.info.band
    if band is not None:
        low, high = (format_time(value * PS_PER_S) for value in (band.low_s, band.high_s))
        text += f", {band.level:.0%} band {low} to {high}"
    return text


def _verdict(found: Diagnosis) -> str:
    share = found.measured.step_s / found.expected_s - 1
    gap = f"{format_time(abs(found.gap_s) * PS_PER_S)} {'longer' if share > 0 else 'shorter'} ({share:+.1%})"
    if found.verdict == "inside":
        return f"INSIDE the band: {gap} than expected, as runs like it differ from predictions"
    return f"OUTSIDE the band, {found.verdict}: {gap} than expected"


def _causes(found: Diagnosis) -> Iterator[str]:
    yield ""
    yield "where the difference comes from (adds up)"
    least = _SHOWN * found.expected_s
    shown = [cause for cause in found.causes if abs(cause.extra_s) >= least]
    for cause in shown:
        sign = "+" if cause.extra_s > 0 else "-"
        name = cause.name if cause.extra_s > 0 else _LESS.get(cause.name, cause.name)
        yield f"  {sign}{format_time(abs(cause.extra_s) * PS_PER_S):>9}  {name}"
        yield from wrap(cause.seen, WIDTH, initial_indent=" " * 14, subsequent_indent=" " * 14)
        if cause.extra_s > 0:
            advice = f"check: {ADVICE[cause.name]}"
            yield from wrap(advice, WIDTH, initial_indent=" " * 14, subsequent_indent=" " * 16)
    rest = sum(cause.extra_s for cause in found.causes) - sum(cause.extra_s for cause in shown)
    if rest:
        yield f"  {'+' if rest > 0 else '-'}{format_time(abs(rest) * PS_PER_S):>9}  all else"


def diagnosis_object(found: Diagnosis) -> dict[str, Any]:
    """For ``--json``: seconds, bytes."""
    band = found.info.band
    peaks = [stage.peak for stage in found.info.memory]
    return {
        "verdict": found.verdict,
        "measured_s": found.measured.step_s,
        "expected_s": found.expected_s,
        "gap_s": found.gap_s,
        "band": None if band is None else {"low_s": band.low_s, "high_s": band.high_s, "level": band.level},
        "memory_bytes": found.measured.memory_bytes or None,
        "expected_memory_bytes": max(peaks, default=None),
        "asked": found.info.asked,
        "doubts": list(found.measured.doubts),
        "causes": [{**dataclasses.asdict(cause), "check": ADVICE[cause.name]} for cause in found.causes],
        "checks": [check.as_object() for check in found.checks],
    }
