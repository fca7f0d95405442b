"""The page of a run, section by section."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path
from typing import Final

from simcore.analysis.critical_path import CriticalPath, critical_path
from simcore.analysis.links import step_links
from simcore.analysis.step import StepAnalysis
from simcore.analysis.waterfall import PARTS, Waterfall
from simcore.report.asked import flag_of, stated_job, title
from simcore.report.page.charts import memory_chart, pipeline_chart, roofline_chart
from simcore.report.page.document import Cell, bars, details, lines, section, table, write_document
from simcore.report.page.tables import kernel_section, links_section, path_section
from simcore.report.run_object import json_object
from simcore.timeline.info import RunInfo
from simcore.timeline.reader import Timeline
from simcore.units import format_bytes, format_time, ps_from_s, s_from_ps

PAGE_FILE: Final = "report.html"
#: Colours of the waterfall's bars.
_KINDS: Final = {
    "ideal": "good", "clock": "clock", "slowest": "clock", "products": "work", "memory_bound": "work",
    "recompute": "again", "optimizer": "work", "kernel_contention": "share",
    "communication_contention": "share",
    "peers": "wait", "bubble": "wait", "host": "wait",
}  # fmt: skip


def write_page(
    timeline: Timeline, analysis: StepAnalysis, path: Path,
    critical: Callable[[], CriticalPath | None] = lambda: None,
) -> None:  # fmt: skip
    """Write a run's page to ``path``.  ``critical``, asked late, gives its critical path where that is known.

    InputError where it cannot be written.
    """
    info = timeline.info
    fall = analysis.waterfall
    numbers = json_object(info, analysis, timeline.path, 0.0)
    data = {
        "numbers": {key: value for key, value in numbers.items() if key not in ("timeline", "wall_s")},
        "step_ps": str(info.step_ps),
        "num_ranks": fall.num_ranks,
        "waterfall": {name: str(ps) for name, ps in fall.gpu_ps.items()},
        "pipeline": pipeline_chart(timeline, analysis),
        "memory": memory_chart(timeline),
        "roofline": roofline_chart(info, analysis),
    }
    sections = [
        _header(info),
        _answer(info, analysis),
        _assumed(info),
        _pipeline(info),
        _waterfall(fall, analysis),
        _memory(info),
        *([_tornado(info)] if info.tornado else ()),
        kernel_section(analysis),
        links_section(step_links(timeline)),
        path_section(critical() or critical_path(timeline)),
        _files(info),
    ]
    write_document(path, f"{info.workload.name}: {format_time(info.step_ps)} a step", sections, data)


def _header(info: RunInfo) -> str:
    parts = ", ".join(f"<span>{_starred(part)}</span>" for part in stated_job(info))
    asked = f'<p class="asked"><code>{escape(info.asked)}</code></p>' if info.asked else ""
    return (
        f'<header><h1>{_starred(title(info))}</h1><p class="job">{parts}</p>'
        f'<p class="note"><b class="star">*</b> assumed, as nobody said it</p>{asked}</header>'
    )


def _starred(text: str) -> str:
    return escape(text).replace("*", '<b class="star">*</b>')


def _answer(info: RunInfo, analysis: StepAnalysis) -> str:
    rates = analysis.throughput
    known = rates.peak_tflops_per_gpu > 0
    cards = [("Step time", format_time(info.step_ps), _band(info), "step_time_s", s_from_ps(info.step_ps))]
    if rates.tokens_per_s:
        per_gpu = f"{rates.tokens_per_s / info.workload.world_size:,.0f} a GPU"
        label = f"{info.workload.counted.capitalize()}/s"
        cards.append((label, f"{rates.tokens_per_s:,.0f}", per_gpu, "tokens_per_s", rates.tokens_per_s))
    if known:
        both = f"all scores {rates.mfu_full_attention:.1%}, executed (HFU) {rates.hfu:.1%}"
        cards.append(("MFU, causal attention once", f"{rates.mfu:.1%}", both, "mfu", rates.mfu))
    fullest = max(info.memory, key=lambda row: row.peak, default=None)
    if fullest is not None and fullest.peak:
        of = f"of {format_bytes(fullest.capacity)} on the fullest GPU"
        cards.append(
            ("Peak memory", format_bytes(fullest.peak), of, "peak_memory_bytes", float(fullest.peak))
        )
    shown = "".join(
        f'<div class="card"><dt>{escape(label)}</dt><dd data-key="{key}" data-v="{number!r}">{escape(value)}'
        f"</dd><dd class=small>{escape(more)}</dd></div>"
        for label, value, more, key, number in cards
    )
    parts = [f'<dl class="cards">{shown}</dl>']
    said = [*([info.memory_verdict] if info.memory_verdict else []), *_band_said(info)]
    parts.append(lines(said))
    parts += [lines((f"warning: {one}" for one in info.warnings), "warnings")] if info.warnings else []
    if info.nearest:
        rows = [
            (
                run.id, ", ".join(run.differs[:4]) or "nothing that counts",
                (format_time(ps_from_s(run.predicted_s)), run.predicted_s),
                (format_time(ps_from_s(run.measured_s)), run.measured_s), (f"{run.error:+.1%}", run.error),
            )
            for run in info.nearest
        ]  # fmt: skip
        head = ("Nearest measured runs", "What differs there", "Predicted", "Measured", "Error")
        parts.append(table(head, rows, caption="Measured runs most like this job"))
    return section("answer", "The answer", *parts)


def _band(info: RunInfo) -> str:
    return f"{info.band.level:.0%} band {info.band.ends}" if info.band is not None else ""


def _band_said(info: RunInfo) -> Iterator[str]:
    band = info.band
    if band is not None:
        yield (
            f"The band is what predictions of measured runs like this one missed by ({band.runs:.0f} runs of"
            f" equal weight)."
        )
        if band.widened > 1.005:
            yield f"It is {band.widened - 1:.0%} wider, as no measured run is near."
        yield from band.reasons


def _assumed(info: RunInfo) -> str:
    rows = [
        (one.key or "-", f"{one.value}" if one.key else "", one.why, flag_of(one).partition("=")[0] or "")
        for one in info.assumed
    ]
    parts = []
    if rows:
        head = ("What was assumed", "Value", "Why", "Flag that changes it")
        parts.append(details(f"{len(rows)} values that nobody said", table(head, rows)))
    if info.assumptions:
        parts.append(details(f"{len(info.assumptions)} things taken for granted", lines(info.assumptions)))
    return section("assumed", "What was asked and what was assumed", *parts)


def _pipeline(info: RunInfo) -> str:
    buttons = "".join(
        f'<button type="button" data-view="{name}">{label}</button>'
        for name, label in (
            ("whole", "Whole step"),
            ("first", "First"),
            ("steady", "Steady"),
            ("last", "Last"),
        )
    )
    keys = (
        "Drag or arrow keys pan; + and -, a double click or the wheel with Ctrl zoom; n and p go from pass to"
        " pass, Escape back to the whole. A row is a GPU: above what it computes, below what it moves."
    )
    several = "es" if info.workload.num_microbatches != 1 else ""
    return section(
        "pipeline", "The step over time",
        f'<div class="tools" role="group" aria-label="Part of the step">{buttons}</div>',
        '<div id="lanes"><canvas tabindex="0" role="application" aria-describedby="lanes-keys"'
        ' aria-label="Passes of each stage over time"></canvas><div id="tip" hidden></div></div>',
        '<div id="legend" class="legend"></div>',
        f'<p class="intro" id="lanes-keys">{escape(keys)}</p>',
        '<p id="said" class="unseen" aria-live="polite"></p>',
        intro=f"{info.workload.num_microbatches:,} microbatch{several} of {info.workload.micro_batch_size}",
    )  # fmt: skip


def _waterfall(fall: Waterfall, analysis: StepAnalysis) -> str:
    step, before = fall.step_ps, 0.0
    rows: list[tuple[str, str, float, float, str]] = []
    for name, ps in fall.gpu_ps.items():
        if not ps:
            continue
        mean = ps / fall.num_ranks
        share = mean / step
        value = f"{format_time(mean)}  {share:+.1%}" if rows else f"{format_time(mean)}  {share:.1%}"
        rows.append((PARTS[name], value, before, share, _KINDS.get(name, "move")))
        before += share
    rows.append(("step", format_time(step), 0.0, 1.0, "all"))
    intro = (
        "Mean of all GPUs; parts add up to the step. What the model's flops take at the datasheet's peak is"
        f" the MFU ({analysis.throughput.mfu:.1%}); the rest is what they lose to, from top to bottom."
    )
    return section("waterfall", "From ideal to actual", bars(rows, "Parts of the step time"), intro=intro)


def _memory(info: RunInfo) -> str:
    if not info.memory_peaks and not info.memory:
        return ""
    rows: list[tuple[Cell, ...]] = [
        (
            f"stage {row.stage}", *((format_bytes(size), float(size)) for size in (
                row.parameters, row.gradients, row.optimizer_states, row.activations, row.peak, row.capacity,
            )),
        )
        for row in sorted({row.stage: row for row in info.memory}.values(), key=lambda one: one.stage)
    ]  # fmt: skip
    head = ("Stage", "Parameters", "Gradients", "Optimizer", "Activations", "Peak", "Of")
    parts = []
    if info.memory_peaks:
        stages = "".join(
            f'<option value="{one.stage}">stage {one.stage}</option>' for one in info.memory_peaks
        )
        parts.append(
            f'<div class="tools"><label>Stage <select id="stage">{stages}</select></label>'
            '<button type="button" id="peak">What is held at the peak</button></div><div id="memory-chart"'
            ' role="img" aria-label="Memory of a stage over the step by category; the table below has the'
            ' peaks"></div>'
        )
        parts += [_peak(info, number) for number in range(len(info.memory_peaks))]
    parts.append(table(head, rows, caption="Memory of each stage at its peak"))
    intro = (
        "Of one GPU. Curves are what storages hold; peaks in the table add what the allocator keeps besides."
    )
    return section("memory", "Memory", *parts, intro=intro)


def _peak(info: RunInfo, number: int) -> str:
    peak = info.memory_peaks[number]
    rows = [
        (
            one.name, one.category, (f"{one.count:,}", float(one.count)),
            (format_bytes(one.num_bytes), float(one.num_bytes)),
        )
        for one in peak.largest
    ]  # fmt: skip
    said = (
        f"Stage {peak.stage} holds {format_bytes(peak.num_bytes)} at {format_time(peak.time_ps)}, at"
        f" {peak.instant or 'its fullest'}"
    )
    inner = table(("Largest then", "Category", "Number", "Bytes"), rows) if rows else ""
    return details(said, inner, name=f"peak-{peak.stage}")


def _tornado(info: RunInfo) -> str:
    step_s = s_from_ps(info.step_ps)
    ends = [(one.what, "10% less", one.step_time_s_less / step_s - 1) for one in info.tornado]
    ends += [(one.what, "10% more", one.step_time_s_more / step_s - 1) for one in info.tornado]
    ends.sort(key=lambda one: [row.what for row in info.tornado].index(one[0]))
    widest = max(abs(change) for *_, change in ends) or 1.0
    shown = [
        (f"{what}, {how}", f"{change:+z.2%}", 0.5, change / widest / 2, "wait" if change > 0 else "good")
        for what, how, change in ends
    ]
    return section(
        "tornado", "What the step answers to", bars(shown, "Change of the step time"),
        intro="The step simulated with a tenth less and a tenth more of one resource at a time.",
    )  # fmt: skip


def _files(info: RunInfo) -> str:
    """What the page rests on."""
    versions = ", ".join(f"{name} {version}" for name, version in info.versions.items())
    said = [
        f"stepsim at {info.commit or 'no commit'}; {versions}",
        "kernel times come from: " + ", ".join(f"{name} {share:.1%}" for name, share in info.origins.items()),
        f"seed {info.seed}, {info.network} network, {info.num_rank_classes} classes of ranks,"
        f" {info.engine_events:,} events; digest {info.digest[:16]}",
    ]
    return f"<footer>{lines(said)}</footer>"
