"""How each published metric became seconds per step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from simcore.apps.validate.runs.page.tables import percent, table
from simcore.apps.validate.runs.score import RowScore
from simcore.errors import SimcoreError
from simcore.hardware import load_cluster
from workloads.jobs.published.measured import converted_step_s

#: What a step's seconds are, by metric; ``workloads/jobs/published/measured.py`` computes them.
FORMULAS: Final = {
    "step_time_s": "as published",
    "samples_per_s": "batch / rate",
    "tokens_per_s_total": "batch x sequence / rate",
    "tokens_per_s_per_gpu": "batch x sequence / (rate x GPUs)",
    "tflops_per_gpu": "model flops / (rate x GPUs), attention in full as Megatron-LM counts it"
    " (arXiv 2104.04473); x 4/3 where the row says that recomputation counts",
    "mfu_percent": "the same flops / (share x dense 16-bit peak x GPUs)",
}


def metric_lines(scores: Sequence[RowScore]) -> list[str]:
    """Rows and formula by metric, and how far the table's own conversion lies from the formula."""
    by_metric: dict[str, list[RowScore]] = defaultdict(list)
    for score in scores:
        by_metric[score.described.row.text("metric")].append(score)
    rows = []
    for metric, found in sorted(by_metric.items(), key=lambda item: -len(item[1])):
        families = sorted({score.described.row.family for score in found})
        apart = [distance for score in found if (distance := _distance(score)) is not None]
        far = percent(max(apart)) if apart else ""
        rows.append((metric, FORMULAS.get(metric, ""), len(found), ", ".join(families), far))
    return [
        "## How metrics become seconds per step",
        "",
        "Batches are in samples.  Other spellings and units of these metrics are understood as well"
        " (`workloads/jobs/published/measured.py`).  Where a table already holds the step time"
        " that its author derived (`step_time_s_derived`), that is used; last column: the largest distance"
        " of the formula from it.",
        "",
        *table(("metric", "seconds per step", "rows", "families", "formula against the table, %"), rows),
    ]


def _distance(score: RowScore) -> float | None:
    """Relative distance of the formula from what was used; None where the row lacks its inputs."""
    described = score.described
    case = described.band.cases[0]
    try:
        own = converted_step_s(described.row, case.model, load_cluster(case.cluster, case.overrides).gpu)
    except SimcoreError:
        return None
    return abs(own / described.measured_s - 1)
