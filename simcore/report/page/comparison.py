"""The page of two runs: side by side, with the difference explained."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from simcore.analysis.comparison import Comparison
from simcore.analysis.waterfall import PARTS
from simcore.report.asked import stated_job, title
from simcore.report.comparison import comparison_object, signed_time, told_input, verdict
from simcore.report.page.charts import pipeline_chart
from simcore.report.page.document import Cell, bars, lines, section, table, write_document
from simcore.timeline.reader import Timeline
from simcore.units import format_time

_SHOWN: Final = 25


def write_comparison(comparison: Comparison, first: Timeline, second: Timeline, path: Path) -> None:
    """Write the page of two compared runs.  InputError where it cannot be written."""
    sections = [
        _header(first, second),
        section("answer", "The difference", lines(verdict(comparison)), _steps(comparison)),
        _inputs(comparison),
        _falls(comparison),
        _ops(comparison),
        *(_pictures()),
    ]
    data = {
        "comparison": comparison_object(comparison),
        "pipeline": pipeline_chart(first, comparison.runs[0]),
        "pipeline_b": pipeline_chart(second, comparison.runs[1]),
    }
    write_document(path, f"{first.info.workload.name}: two runs", sections, data)


def _header(first: Timeline, second: Timeline) -> str:
    rows = [
        (name, title(run.info), ", ".join(stated_job(run.info)), run.info.asked)
        for name, run in (("A", first), ("B", second))
    ]
    return f"<header><h1>Two runs, side by side</h1>{table(('Run', 'Job', 'As', 'Asked'), rows)}</header>"


def _steps(comparison: Comparison) -> str:
    a, b = comparison.runs
    of_a, of_b = comparison.work
    numbers: list[tuple[str, str, str, float, float]] = [
        ("step time", format_time(a.step_ps), format_time(b.step_ps), a.step_ps, b.step_ps),
        (
            "tokens/s", f"{a.throughput.tokens_per_s:,.0f}", f"{b.throughput.tokens_per_s:,.0f}",
            a.throughput.tokens_per_s, b.throughput.tokens_per_s,
        ),
        ("MFU", f"{a.throughput.mfu:.1%}", f"{b.throughput.mfu:.1%}", a.throughput.mfu, b.throughput.mfu),
        ("GPUs", f"{of_a.gpus:,}", f"{of_b.gpus:,}", of_a.gpus, of_b.gpus),
    ]  # fmt: skip
    rows = [
        (label, (x, float(v)), (y, float(w)), (f"{w / v - 1:+.1%}" if v else "-", w / v - 1 if v else 0.0))
        for label, x, y, v, w in numbers
    ]
    return table(("", "A", "B", "Change"), rows, caption="Both runs")


def _inputs(comparison: Comparison) -> str:
    rows = [(key, *(told_input(key, one) for one in both)) for key, both in comparison.inputs.items()]
    said = (
        table(("What differs", "A", "B"), rows) if rows else lines(["Same workload, cluster and settings."])
    )
    return section("inputs", "What was asked differently", said)


def _falls(comparison: Comparison) -> str:
    """What each part of the step adds to the difference; by the token where works are not the same."""
    scale_a, scale_b = comparison.time_scale
    falls = [one.waterfall for one in comparison.runs]
    both = [
        {name: ps / fall.num_ranks * scale for name, ps in fall.gpu_ps.items()}
        for fall, scale in zip(falls, (scale_a, scale_b), strict=True)
    ]
    whole = sum(both[0].values())
    changes = [(name, (both[1][name] - both[0][name]) / whole) for name in PARTS]
    changes = [one for one in changes if abs(one[1]) >= 5e-4]
    widest = max((abs(change) for _, change in changes), default=1.0)
    rows = [
        (PARTS[name], f"{change:+.1%}", 0.5, change / widest / 2, "wait" if change > 0 else "good")
        for name, change in sorted(changes, key=lambda one: -abs(one[1]))
    ]
    total = sum(both[1].values()) / whole - 1
    of = "step" if comparison.same_work else "GPU time for a token"
    return section(
        "waterfall", "Where the difference is", bars(rows, "Change of each part"),
        intro=f"B's {of} is {abs(total):.1%} {'longer' if total > 0 else 'shorter'} than A's; what each part"
        " adds to that.",
    )  # fmt: skip


def _ops(comparison: Comparison) -> str:
    head = ("Op, per rank", "Calls A", "Calls B", "A", "B", "B - A")
    rows: list[tuple[Cell, ...]] = [
        (
            op.name, *((f"{calls:,.4g}", calls) for calls in op.calls),
            *((format_time(time), time) for time in op.time_ps),
            (signed_time(op.difference_ps), op.difference_ps),
        )
        for op in comparison.ops[:_SHOWN]
    ]  # fmt: skip
    return section("kernels", "Ops", table(head, rows, sortable=True))


def _pictures() -> list[str]:
    return [
        section(
            f"pipeline{key}", f"{name} over time",
            f'<div id="lanes{key}"><canvas tabindex="0" role="application" aria-label="Passes of each stage'
            f' of {name} over time: arrow keys pan, + and - zoom, n and p go from pass to pass">'
            "</canvas></div>",
            f'<div id="legend{key}" class="legend"></div>',
        )
        for name, key in (("A", ""), ("B", "-b"))
    ] + ['<div id="tip" hidden></div><p id="said" class="unseen" aria-live="polite"></p>']  # fmt: skip
