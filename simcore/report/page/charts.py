"""What the page's script draws: passes of stages, memory over time, kernels on a roofline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simcore.analysis.passes import COLUMNS, RankPasses, Spans, rank_passes
from simcore.analysis.step import StepAnalysis
from simcore.timeline.info import RunInfo
from simcore.timeline.memory_table import read_memory
from simcore.timeline.reader import Timeline
from simcore.units import GIB, PS_PER_S

IntArray = npt.NDArray[np.int64]

#: Rows of the picture, parts of the step that times are told in, and stretches that it holds about.
_MOST_ROWS: Final = 16
_PARTS: Final = 2_000_000
_MOST_SPANS: Final = 16_000
_LANES: Final = ("tensor", "context", "expert", "pipeline", "data", "other")
_MOST_KERNELS: Final = 60


def pipeline_chart(timeline: Timeline, analysis: StepAnalysis) -> dict[str, Any]:
    """Rows of passes and communication; times are whole ``tick_s``, starts as differences in a row."""
    step_ps = timeline.info.step_ps
    tick_ps = max(1, step_ps // _PARTS)
    rows = passes_shown(timeline, analysis)
    lanes = [name for name in _LANES if any(name in row.lanes for row in rows)]
    return {
        "tick_s": tick_ps / PS_PER_S,
        "ticks": -(-step_ps // tick_ps),
        "microbatches": timeline.info.workload.num_microbatches,
        "lanes": lanes,
        "rows": [
            {
                "rank": row.rank, "stage": row.stage, "ranks": row.num_ranks, "reasons": row.reasons,
                "compute": {
                    **_packed(row.compute, tick_ps), "gap": _ticks(row.gap_ps, tick_ps),
                    "why": row.waited_for.tolist(), "peer": _ticks(row.peer_ps, tick_ps),
                },
                "lanes": {name: _packed(spans, tick_ps) for name, spans in row.lanes.items()},
            }
            for row in rows
        ],
    }  # fmt: skip


def passes_shown(timeline: Timeline, analysis: StepAnalysis) -> list[RankPasses]:
    """Passes of one rank of each stage (of many stages some) and, where there is room, of other classes."""
    step_ps = timeline.info.step_ps

    def read(most: int, *, together: bool) -> list[RankPasses]:
        """Rank by rank, until they have ``most`` passes: rows of all are many times what is shown of them."""
        found: list[RankPasses] = []
        for rank in _ranks_shown(analysis):
            if most < 0:
                break
            found.append(rank_passes(timeline.rank_rows(rank, COLUMNS), step_ps, together=together))
            most -= len(found[-1].compute)
        return found

    rows = read(_MOST_SPANS // 2, together=False)
    if sum(len(row.compute) for row in rows) > _MOST_SPANS // 2:
        rows = read(timeline.num_rows, together=True)
    while sum(len(row.compute) for row in rows) > _MOST_SPANS and len(rows) > 1:
        rows = [*rows[:-1:2], rows[-1]] if len(rows) > 2 else rows[:1]
    closer_ps = step_ps // 50_000
    while sum(len(spans) for row in rows for spans in row.lanes.values()) > _MOST_SPANS // 2:
        rows = [
            replace(row, lanes={name: spans.joined(closer_ps) for name, spans in row.lanes.items()})
            for row in rows
        ]
        closer_ps *= 2
    return rows


def _ranks_shown(analysis: StepAnalysis) -> list[int]:
    """The lowest class of each stage, then others by how long they compute, at most so many; by stage."""
    first: dict[int, int] = {}
    for one in analysis.ranks:
        first.setdefault(one.stage, one.rank)
    stages = sorted(first)
    if len(stages) > _MOST_ROWS:
        stages = [stages[at] for at in np.linspace(0, len(stages) - 1, _MOST_ROWS).round().astype(int)]
    shown = [first[stage] for stage in stages]
    others = [one for one in analysis.ranks if one.rank not in shown and one.stage in stages]
    others.sort(key=lambda one: -one.breakdown.exposed_compute)
    shown += [one.rank for one in others[: max(0, min(_MOST_ROWS, 2 * len(stages)) - len(shown))]]
    stage_of = {one.rank: one.stage for one in analysis.ranks}
    return sorted(shown, key=lambda rank: (stage_of[rank], rank))


def memory_chart(timeline: Timeline) -> list[dict[str, Any]]:
    """Curves of stages: seconds, GiB by category, and the peak."""
    peaks = {peak.stage: peak for peak in timeline.info.memory_peaks}
    found = []
    for stage, (times, levels) in read_memory(timeline.run_dir).items():
        peak = peaks.get(stage)
        found.append(
            {
                "stage": stage,
                "s": [round(time / PS_PER_S, 9) for time in times.tolist()],
                "categories": list(levels),
                "gib": [[round(size / GIB, 4) for size in level.tolist()] for level in levels.values()],
                "peak_s": peak.time_ps / PS_PER_S if peak else None,
                "instant": peak.instant if peak else "",
            }
        )
    return found


def roofline_chart(info: RunInfo, analysis: StepAnalysis) -> dict[str, Any]:
    """Kernels by flops per byte of memory and flop/s, and the GPU's roofs."""
    gpu = info.cluster.get("gpu", {})
    kernels = []
    for (name,), total in analysis.kernels[:_MOST_KERNELS]:
        seconds = total.time_ps / PS_PER_S
        if total.flops > 0 and total.num_bytes > 0 and seconds > 0:
            share = total.time_ps / analysis.num_ranks / analysis.step_ps
            kernels.append([name, total.flops / total.num_bytes, total.flops / seconds, share])
    return {
        "peak": info.peak_flops_per_s,
        "bytes_per_s": float(gpu.get("hbm_bytes_per_s") or 0.0),
        "kernels": kernels,
    }


def _packed(spans: Spans, tick_ps: int) -> dict[str, Any]:
    starts = spans.start // tick_ps
    ends = -(-spans.end // tick_ps)
    return {
        "kinds": spans.kinds, "kind": spans.kind.tolist(),
        "start": np.diff(starts, prepend=0).tolist(), "long": (ends - starts).tolist(),
        "mb": spans.microbatch.tolist(), "chunk": spans.chunk.tolist(), "first": spans.first_layer.tolist(),
        "last": spans.last_layer.tolist(), "ops": spans.num_ops.tolist(),
        "busy": _ticks(spans.busy_ps, tick_ps),
    }  # fmt: skip


def _ticks(times: IntArray, tick_ps: int) -> Sequence[int]:
    found: list[int] = np.rint(times / tick_ps).astype(np.int64).tolist()
    return found
