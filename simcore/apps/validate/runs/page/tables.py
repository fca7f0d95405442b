"""Summaries of scored runs as Markdown tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from simcore.apps.measured.runs.score import RowScore
from workloads.models.spec import transformer_of


def percent(value: float, *, signed: bool = False) -> str:
    """A share in percent, one decimal."""
    return f"{100 * value:{'+' if signed else ''}.1f}"


def table(heads: Sequence[str], lines: Iterable[Sequence[object]]) -> list[str]:
    """A Markdown table: the first column is text, the others are numbers."""
    out = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    out.extend("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)
    return [*out, ""]


def summary(scores: Sequence[RowScore]) -> tuple[str, ...]:
    """n, mean, median, p90, max and bias of the errors."""
    errors = np.array([score.error for score in scores])
    size = np.abs(errors)
    if not len(errors):
        return ("0", *[""] * 5)
    return (
        str(len(errors)), percent(size.mean()), percent(float(np.median(size))),
        percent(float(np.quantile(size, 0.9))), percent(size.max()), percent(errors.mean(), signed=True),
    )  # fmt: skip


def grouped(
    scores: Iterable[RowScore], key: Callable[[RowScore], str], *, in_order: Sequence[str] = ()
) -> list[tuple[str, ...]]:
    """(group, n, mean, ...) of each group, in the order of the rows or ``in_order``."""
    groups: dict[str, list[RowScore]] = defaultdict(list)
    for name in in_order:
        groups[name] = []
    for score in scores:
        groups[key(score)].append(score)
    return [(name, *summary(found)) for name, found in groups.items() if found]


def size_band(score: RowScore) -> str:
    """Model size, from the model itself."""
    model = transformer_of(score.described.band.cases[0].model, "this page")
    experts = model.moe.num_experts * model.moe.ffn + model.moe.shared_ffn if model.moe else model.ffn
    width = model.hidden * (2 * (model.heads + model.num_kv_heads) * model.size_per_head)
    billions = model.layers * (width + (3 if model.gated else 2) * model.hidden * experts) / 1e9
    for limit in (1, 5, 20, 100):
        if billions < limit:
            return f"< {limit} B"
    return ">= 100 B"


SIZE_BANDS = ("< 1 B", "< 5 B", "< 20 B", "< 100 B", ">= 100 B")


def scale_band(score: RowScore) -> str:
    """GPUs of the run."""
    gpus = score.described.row.count("gpus")
    for limit in (8, 64, 512, 4096):
        if gpus <= limit:
            return f"<= {limit}"
    return "> 4096"


SCALE_BANDS = ("<= 8", "<= 64", "<= 512", "<= 4096", "> 4096")


def strategy(score: RowScore) -> str:
    """Axes that are in use and how parameters are kept."""
    case = score.described.band.cases[0]
    p = case.parallel
    axes = [name for name in ("tp", "pp", "cp", "ep") if getattr(p, name) > 1]
    kept = {"zero3": "FSDP", "fsdp1": "FSDP", "fsdp2": "FSDP"}.get(case.training.sharding, "DP")
    return " + ".join([*axes, kept]) + (", fp8" if case.training.precision == "fp8" else "")
