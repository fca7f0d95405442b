"""Two runs side by side: tables for a terminal, and a JSON object."""

from __future__ import annotations

from textwrap import shorten
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from simcore.analysis.comparison import Comparison
from simcore.report.summary_tables import PARTS, number_table
from simcore.units import format_time, s_from_ps

_LONGEST = 40  # characters of an input: more squeezes the table's other columns out


def comparison_tables(comparison: Comparison, names: tuple[str, str], *, top: int = 12) -> Group:
    """Step and breakdown, the ops that differ most, and stages; ``names`` are the runs'."""
    a, b = comparison.runs
    speed = comparison.speedup
    verdict = f"{speed:.3f} times the speed" if speed else "no time at all"
    parts: list[RenderableType] = [
        Text(f"B runs at {verdict} of A", style="bold"),
        Text(f"A: {names[0]}\nB: {names[1]}"),
        _inputs(comparison),
    ]
    step = number_table("one step", ("A", "B", "B - A", "change"))
    rows = [("step time", float(a.step_ps), float(b.step_ps))]
    of_a, of_b = a.breakdown.parts(), b.breakdown.parts()
    rows += [(f"  {PARTS[name]}", of_a[name], of_b[name]) for name in of_a]
    rows.append(("pipeline bubble", a.bubble_fraction * a.step_ps, b.bubble_fraction * b.step_ps))
    for label, first, second in rows:
        step.add_row(label, *_times(first, second))
    rates_a, rates_b = a.throughput, b.throughput
    if rates_a.tokens_per_s and rates_b.tokens_per_s:  # a recording does not tell its tokens
        step.add_row("tokens/s", *_numbers(rates_a.tokens_per_s, rates_b.tokens_per_s, ",.0f"))
    if rates_a.mfu and rates_b.mfu:
        tflops = (rates_a.model_tflops_per_gpu, rates_b.model_tflops_per_gpu)
        step.add_row("model TFLOP/s per GPU", *_numbers(*tflops, ".1f"))
        step.add_row(
            "MFU", f"{rates_a.mfu:.1%}", f"{rates_b.mfu:.1%}", f"{rates_b.mfu - rates_a.mfu:+.1%}", ""
        )
    parts.append(step)

    ops = number_table("op, per rank", ("calls A", "calls B", "A", "B", "B - A", "change"))
    for op in [op for op in comparison.ops if op.difference_ps][:top]:
        ops.add_row(op.name, *(f"{calls:,.4g}" for calls in op.calls), *_times(*op.time_ps))
    parts.append(ops if ops.row_count else Text("every op takes the same time"))

    path = number_table(
        "on the critical path", ("stream", "A works", "A waits", "B works", "B waits", "B - A")
    )
    for row in comparison.path[:top]:
        times = (row.work_ps[0], row.wait_ps[0], row.work_ps[1], row.wait_ps[1])
        path.add_row(row.name, row.stream, *map(format_time, times), _signed(row.difference_ps))
    rest = sum(row.difference_ps for row in comparison.path[top:])
    if len(comparison.path) > top:
        path.add_row(f"{len(comparison.path) - top} others", "", "", "", "", "", _signed(rest))
    parts.append(path if path.row_count else Text("the critical paths are equal"))

    stages = number_table("stage: A to B", tuple(PARTS.values()))
    for stage, (first_parts, second_parts) in comparison.stages.items():
        before, after = first_parts.parts(), second_parts.parts()
        stages.add_row(str(stage), *(_signed(after[name] - before[name]) for name in before))
    parts.append(stages)
    return Group(*parts)


def comparison_object(comparison: Comparison) -> dict[str, Any]:
    """The same as JSON values.  Times in s and means of all ranks; pairs are first and second run."""
    a, b = comparison.runs
    return {
        "step_time_s": [a.step_s, b.step_s],
        "speedup": comparison.speedup,
        "breakdown_s": [a.breakdown_s(), b.breakdown_s()],
        "mfu": [a.throughput.mfu, b.throughput.mfu],
        "tokens_per_s": [a.throughput.tokens_per_s, b.throughput.tokens_per_s],
        "inputs": {key: list(values) for key, values in comparison.inputs.items()},
        "ops": [
            {
                "name": op.name,
                "calls": list(op.calls),
                "time_s": [s_from_ps(time) for time in op.time_ps],
                "difference_s": s_from_ps(op.difference_ps),
            }
            for op in comparison.ops
        ],
        "path": [
            {
                "name": row.name,
                "stream": row.stream,
                "work_s": [s_from_ps(time) for time in row.work_ps],
                "wait_s": [s_from_ps(time) for time in row.wait_ps],
                "difference_s": s_from_ps(row.difference_ps),
            }
            for row in comparison.path
        ],
        "stages": [
            {
                "stage": stage,
                "breakdown_s": [
                    {name: s_from_ps(part) for name, part in breakdown.parts().items()} for breakdown in both
                ],
            }
            for stage, both in comparison.stages.items()
        ],
    }


def _inputs(comparison: Comparison) -> RenderableType:
    if not comparison.inputs:
        return Text("same workload, cluster, settings and version")
    table = number_table("what differs", ("A", "B"))
    for key, values in comparison.inputs.items():
        table.add_row(key, *("-" if value is None else shorten(str(value), _LONGEST) for value in values))
    return table


def _times(a: float, b: float) -> tuple[str, str, str, str]:
    return format_time(a), format_time(b), _signed(b - a), f"{b / a - 1:+.1%}" if a else "-"


def _numbers(a: float, b: float, style: str) -> tuple[str, str, str, str]:
    return f"{a:{style}}", f"{b:{style}}", f"{b - a:+{style}}", f"{b / a - 1:+.1%}" if a else "-"


def _signed(time_ps: float) -> str:
    return f"+{format_time(time_ps)}" if time_ps > 0 else format_time(time_ps)
