"""The summary that a run prints: tables for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from simcore.analysis.critical_path import CriticalPath
from simcore.analysis.step import StepAnalysis
from simcore.analysis.totals import Key, Total
from simcore.graph.kinds import COMMUNICATION_KINDS
from simcore.report.asked import asked_lines
from simcore.timeline.info import RunInfo, StageMemory
from simcore.units import format_bytes, format_time, ps_from_s

_MAX_STAGES = 16
_MAX_DIFFERENCES = 3
PARTS = {
    "exposed_compute": "exposed compute",
    "overlapped": "overlapped",
    "exposed_communication": "exposed communication",
    "idle": "idle",
}


def summary(info: RunInfo, analysis: StepAnalysis, *, top: int = 8) -> Group:
    """Everything worth a look first: step, breakdown, rates, stages, kernels, collectives, warnings."""
    parts: list[RenderableType] = [
        *_asked(info),
        _step_table(info, analysis),
        _stage_table(info, analysis),
        _phase_table(analysis),
        _total_table("kernel", analysis.kernels[:top], analysis),
    ]
    if analysis.collectives:
        parts.append(_total_table("communication", analysis.collectives[:top], analysis))
    parts += _band_parts(info, analysis.step_ps)
    parts += [Text(line) for line in _basis(info)]
    parts += [Text(f"warning: {line}", style="yellow") for line in info.warnings]
    return Group(*parts)


def critical_path_tables(path: CriticalPath, *, top: int = 8) -> Group:
    """What the step time consists of, by op and by stage."""
    kernels = number_table("on the critical path", ("calls", "time", "share", "slowdown"))
    for key, total in path.parts[:top]:
        kernels.add_row(
            " ".join(filter(None, key)),
            f"{total.count:,}",
            format_time(total.time_ps),
            _share(total.time_ps, path.step_ps),
            _slowdown(total),
        )
    stages = number_table("critical path in stage", ("time", "share"))
    for stage in _spread(list(path.by_stage), _MAX_STAGES):
        time = path.by_stage[stage]
        stages.add_row(str(stage), format_time(time), _share(time, path.step_ps))
    return Group(kernels, stages)


def _asked(info: RunInfo) -> list[Text]:
    first, *rest = asked_lines(info)
    return [Text(first, style="bold"), *map(Text, rest)]


def _step_table(info: RunInfo, analysis: StepAnalysis) -> Table:
    rates = analysis.throughput
    table = number_table("one step, mean of all ranks", ("", "share", "as profiled"))
    table.add_row("step time", format_time(analysis.step_ps), "", style="bold")
    if info.band is not None:
        table.add_row(f"  {info.band.level:.0%} band", info.band.ends, "")
    profiled_parts = analysis.profiled.parts()
    for name, part in analysis.breakdown.parts().items():
        profiled = _share(profiled_parts[name], analysis.step_ps)
        table.add_row(f"  {PARTS[name]}", format_time(part), _share(part, analysis.step_ps), profiled)
    for label, time in (
        ("pipeline bubble", analysis.bubble_fraction * analysis.step_ps),
        ("communication waits for peers", analysis.waiting_ps),
        ("sharing slows compute by", analysis.compute_contention_ps),
        ("sharing slows communication by", analysis.communication_contention_ps),
    ):
        table.add_row(label, format_time(time), _share(time, analysis.step_ps))
    # A script tells its tokens only by trace_workload.py's --tokens-per-step.
    tokens = f"{rates.tokens_per_s:,.0f}" if rates.tokens_per_s else "unknown"
    table.add_row(f"{info.workload.counted}/s", tokens, "")
    rows = [
        ("MFU, causal attention once", rates.model_tflops_per_gpu, rates.mfu),
        ("MFU, all attention scores", rates.model_tflops_per_gpu_full_attention, rates.mfu_full_attention),
        ("HFU, all that is executed", rates.executed_tflops_per_gpu, rates.hfu),
    ]
    if rates.model_tflops_per_gpu == rates.model_tflops_per_gpu_full_attention:  # none that is causal
        rows = [("MFU", rates.model_tflops_per_gpu, rates.mfu), rows[-1]]
    for label, tflops, share in rows:
        known = rates.peak_tflops_per_gpu > 0
        table.add_row(label, f"{tflops:.1f} TFLOP/s per GPU", f"{share:.1%}" if known else "-")
    return table


def _stage_table(info: RunInfo, analysis: StepAnalysis) -> Table:
    stages = analysis.stages()
    memory: dict[int, StageMemory] = {}
    for row in info.memory:
        if row.stage not in memory or row.peak > memory[row.stage].peak:
            memory[row.stage] = row
    picked = _spread(sorted(stages), _MAX_STAGES)
    some = "" if len(picked) == len(stages) else f" ({len(picked)} of {len(stages)})"
    numbers = ("exp. compute", "overlapped", "exp. comm.", "idle", "peak memory", "of")
    table = number_table(f"stage{some}", numbers)
    for stage in picked:
        times = [format_time(part) for part in stages[stage].parts().values()]
        used = ("-", "-")
        if stage in memory and memory[stage].peak:
            used = (format_bytes(memory[stage].peak), format_bytes(memory[stage].capacity))
        table.add_row(str(stage), *times, *used)
    return table


def _phase_table(analysis: StepAnalysis) -> Table:
    table = number_table("phase, mean of all ranks", ("compute", "communication"))
    by_phase: dict[str, list[float]] = {}
    for (phase, kind), total in analysis.phases:
        times = by_phase.setdefault(phase, [0.0, 0.0])
        times[kind in COMMUNICATION_KINDS] += total.time_ps / analysis.num_ranks
    for phase, times in by_phase.items():
        table.add_row(phase, *map(format_time, times))
    return table


def _total_table(kind: str, rows: Sequence[tuple[Key, Total]], analysis: StepAnalysis) -> Table:
    table = number_table(f"{kind}, mean of all ranks", ("calls", "time", "share", "slowdown"))
    for key, total in rows:
        time = total.time_ps / analysis.num_ranks
        per_rank = total.count / analysis.num_ranks
        calls = f"{per_rank:,.0f}" if per_rank >= 10 else f"{per_rank:.3g}"
        table.add_row(
            " ".join(part for part in key if part),
            calls,
            format_time(time),
            _share(time, analysis.step_ps),
            _slowdown(total),
        )
    return table


def number_table(label: str, numbers: Sequence[str]) -> Table:
    """A table with one column of labels and columns of numbers, which never wrap."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column(label, overflow="fold")
    for number in numbers:
        table.add_column(number, justify="right", no_wrap=True)
    return table


def _basis(info: RunInfo) -> list[str]:
    """What the figures rest on."""
    lines = []
    if info.origins:
        called = {"fitted": f"fitted on {lent}"} if (lent := _lent_by(info.cluster)) else {}
        shares = ", ".join(f"{called.get(name, name)} {share:.1%}" for name, share in info.origins.items())
        lines.append(f"kernel times come from: {shares}")
    if info.peak_flops_per_s:
        peak = f"{info.peak_flops_per_s / 1e12:,.0f} TFLOP/s ({info.peak_math})"
        lines.append(f"MFU and HFU are shares of {peak} per GPU; a bubble runs no kernel and no collective")
    return lines


def _lent_by(cluster: Mapping[str, Any]) -> str:
    """The generation whose constants of kernels stand in for those of the GPU's own; empty for none."""
    gpu = cluster.get("gpu", {})
    lacks = "constants of kernels" in gpu.get("sources", {}).get("generation", "")
    return str(gpu["like"]) if lacks and gpu.get("like") else ""


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def _slowdown(total: Total) -> str:
    return f"{total.time_ps / total.alone_ps:.3f}x" if total.alone_ps else "-"


def _spread(items: Sequence[int], count: int) -> list[int]:
    """At most ``count`` of the items, first and last among them, evenly spread."""
    if len(items) <= count:
        return list(items)
    return [items[k] for k in np.linspace(0, len(items) - 1, count).round().astype(int).tolist()]


def _band_parts(info: RunInfo, step_ps: int) -> list[RenderableType]:
    """A sentence, what the band does not cover, and a table of the nearest runs; nothing without band."""
    band = info.band
    if band is None:
        return []
    low, high = (ps_from_s(end) / step_ps - 1 if step_ps else 0.0 for end in (band.low_s, band.high_s))
    lines = [
        f"step time {format_time(step_ps)}, {band.level:.0%} band {band.ends}"
        f" ({low:+.1%} to {high:+.1%}): what predictions of measured runs like this one missed by"
        f" ({band.runs:.0f} of equal weight)"
    ]
    if band.widened > 1.005:
        lines.append(f"the band is {band.widened - 1:.0%} wider, as no measured run is near:")
    lines += [f"  {reason}" for reason in band.reasons]
    parts: list[RenderableType] = [Text(line) for line in lines]
    return [*parts, _nearest_runs(info)] if info.nearest else parts


def _nearest_runs(info: RunInfo) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("nearest measured runs", overflow="fold")
    table.add_column("what differs there", overflow="fold")
    for number in ("predicted", "measured", "error"):
        table.add_column(number, justify="right", no_wrap=True)
    for run in info.nearest:
        differs = ", ".join(run.differs[:_MAX_DIFFERENCES]) or "nothing that counts"
        more = len(run.differs) - _MAX_DIFFERENCES
        table.add_row(
            run.id,
            differs + (f", {more} more" if more > 0 else ""),
            format_time(ps_from_s(run.predicted_s)),
            format_time(ps_from_s(run.measured_s)),
            f"{run.error:+.1%}",
        )
    return table
