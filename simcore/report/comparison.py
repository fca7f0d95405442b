"""Two runs side by side: tables for a terminal, and a JSON object."""

from __future__ import annotations

from itertools import islice
from textwrap import wrap
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from simcore.analysis.comparison import Comparison
from simcore.report.asked import WIDTH
from simcore.report.summary_tables import PARTS, number_table
from simcore.units import format_time, s_from_ps

_SAME = 1e-3  # a smaller difference is none
_LONGEST = 60  # characters of an input, which folds where it is longer than its column
_ROWS = 30
_COLUMN = 22  # letters of a column of inputs: with the keys', 80 at most


def comparison_tables(comparison: Comparison, names: tuple[str, str], *, top: int = 12) -> Group:
    """Verdict, step and breakdown, the ops that differ most, and stages; ``names`` are the runs'."""
    a, b = comparison.runs
    said, *more = verdict(comparison)
    parts: list[RenderableType] = [
        Text(said, style="bold"),
        *(Text("\n".join(wrap(line, WIDTH, subsequent_indent="  "))) for line in more),
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
    per_token = comparison.gpu_time_per_token()
    if per_token is not None and not comparison.same_work:
        table = number_table("GPU time for a token", ("A", "B", "B - A", "change"))
        table.add_row("all", *_times(*(sum(side.values()) for side in per_token)))
        for name, time in per_token[0].items():
            table.add_row(f"  {PARTS[name]}", *_times(time, per_token[1][name]))
        parts.append(table)

    ops = _ops(comparison, top)
    parts.append(ops if ops.row_count else Text("every op takes the same time"))

    path = number_table(
        "on the critical path", ("stream", "A works", "A waits", "B works", "B waits", "B - A")
    )
    for row in comparison.path[:top]:
        times = (row.work_ps[0], row.wait_ps[0], row.work_ps[1], row.wait_ps[1])
        path.add_row(row.name, row.stream, *map(format_time, times), signed_time(row.difference_ps))
    rest = sum(row.difference_ps for row in comparison.path[top:])
    if len(comparison.path) > top:
        path.add_row(f"{len(comparison.path) - top} others", "", "", "", "", "", signed_time(rest))
    parts.append(path if path.row_count else Text("the critical paths are equal"))

    stages = number_table("stage: A to B", tuple(PARTS.values()))
    for stage, (first_parts, second_parts) in comparison.stages.items():
        before, after = first_parts.parts(), second_parts.parts()
        stages.add_row(str(stage), *(signed_time(after[name] - before[name]) for name in before))
    parts.append(stages)
    return Group(*parts)


def _ops(comparison: Comparison, top: int) -> Table:
    """Ops that differ, what differs most first: by the token where works are not the same."""
    scale_a, scale_b = comparison.time_scale
    change = "change" if comparison.same_work else "per token"
    table = number_table("op, per rank", ("calls A", "calls B", "A", "B", "B - A", change))
    scaled = [(op, op.time_ps[0] * scale_a, op.time_ps[1] * scale_b) for op in comparison.ops]
    scaled.sort(key=lambda one: -abs(one[2] - one[1]))
    for op, first_ps, second_ps in [one for one in scaled if one[0].difference_ps][:top]:
        times = (*_times(*op.time_ps)[:3], f"{second_ps / first_ps - 1:+.1%}" if first_ps else "-")
        table.add_row(op.name, *(f"{calls:,.4g}" for calls in op.calls), *times)
    return table


def verdict(comparison: Comparison) -> list[str]:
    """Which is faster and why, a sentence each: by the step if both do the same, else by the token, too."""
    speed = comparison.speedup
    if not speed:
        return ["B takes no time at all"]
    a, b = comparison.work
    tokens = comparison.speedup_per("tokens")
    if comparison.same_work or not tokens:
        lines = [f"B runs at {speed:.3f} times the speed of A"]
    else:
        each = (
            f"{b.tokens / a.tokens:.4g} times the tokens a step" if a.tokens != b.tokens else "as many tokens"
        )
        lines = [f"B trains {tokens:.3f} times the tokens/s of A: {each} in {1 / speed:.4g} of the time"]
        if a.gpus != b.gpus:
            gpus = b.gpus / a.gpus
            lines.append(f"on {gpus:.4g} times the GPUs: {tokens / gpus:.3f} times the tokens/s of each GPU")
        of_a, of_b = a.flops / a.tokens, b.flops / b.tokens
        if of_a and of_b and abs(of_b / of_a - 1) > _SAME:
            lines.append(
                f"a token of B takes {of_b / of_a:.4g} times the flops of one of A:"
                f" {comparison.speedup_per('flops'):.3f} times the model flop/s"
            )
    return [*lines, *_why(comparison)]


def _why(comparison: Comparison) -> list[str]:
    """Parts of the step by what they add to the difference, the largest first, in shares of A's whole."""
    per_token = None if comparison.same_work else comparison.gpu_time_per_token()
    first, second = per_token or tuple(run.breakdown.parts() for run in comparison.runs)
    whole = sum(first.values())
    changes = sorted(
        ((name, (second[name] - first[name]) / whole if whole else 0.0) for name in first),
        key=lambda one: -abs(one[1]),
    )
    total = sum(change for _, change in changes)
    told = ", ".join(f"{PARTS[name]} {change:+.1%}" for name, change in changes if abs(change) >= _SAME)
    of = "GPU time for a token" if per_token else "step time"
    return [f"why: {of} {total:+.1%}, of which {told}"] if told else []


def comparison_object(comparison: Comparison) -> dict[str, Any]:
    """The same as JSON values.  Times in s and means of all ranks; pairs are first and second run."""
    a, b = comparison.runs
    per_token = comparison.gpu_time_per_token()
    gpus = comparison.work[1].gpus / comparison.work[0].gpus
    return {
        "step_time_s": [a.step_s, b.step_s],
        "verdict": verdict(comparison),
        "speedup": comparison.speedup,
        "speedup_per_token": comparison.speedup_per("tokens"),
        "speedup_per_token_and_gpu": comparison.speedup_per("tokens") / gpus,
        "tokens_per_step": [work.tokens for work in comparison.work],
        "gpus": [work.gpus for work in comparison.work],
        "gpu_s_per_token": [
            {name: s_from_ps(time) for name, time in side.items()} for side in per_token or ()
        ],
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
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("what differs", overflow="fold")
    for name in ("A", "B"):
        table.add_column(name, justify="right", overflow="fold", max_width=_COLUMN)
    for key, values in islice(comparison.inputs.items(), _ROWS):
        table.add_row(key, *(told_input(key, value) for value in values))
    if (more := len(comparison.inputs) - _ROWS) > 0:
        table.add_row(f"{more} more (--json)", "", "")
    return table


def told_input(key: str, value: Any) -> str:
    """A fact of a run, in its unit: "25 GB/s" of ``cluster.nic_bytes_per_s``."""
    if value is None:
        return "-"
    if isinstance(value, float) and key.endswith("_bytes_per_s"):
        return f"{value / 1e9:,.6g} GB/s"
    told = f"{value:,.6g}" if isinstance(value, float) else str(value)
    return told if len(told) <= _LONGEST else f"{told[: _LONGEST - 3]}..."


def _times(a: float, b: float) -> tuple[str, str, str, str]:
    return format_time(a), format_time(b), signed_time(b - a), f"{b / a - 1:+.1%}" if a else "-"


def _numbers(a: float, b: float, style: str) -> tuple[str, str, str, str]:
    return f"{a:{style}}", f"{b:{style}}", f"{b - a:+{style}}", f"{b / a - 1:+.1%}" if a else "-"


def signed_time(time_ps: float) -> str:
    """A difference: "+3 ms"."""
    return f"+{format_time(time_ps)}" if time_ps > 0 else format_time(time_ps)
