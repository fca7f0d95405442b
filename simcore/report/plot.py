"""A picture of a step: stages over time, coloured by phase."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from simcore.analysis.intervals import IntArray, Intervals
from simcore.graph.kinds import COMMUNICATION_KINDS, COMPUTE_KINDS, P2P_KINDS
from simcore.report.figure import colour_legend, new_figure
from simcore.timeline.reader import Timeline
from simcore.units import PS_PER_S, format_time

if TYPE_CHECKING:
    from simcore.report.figure import Axes

#: Phase -> (label, colour); told apart by lightness as well as hue.
_PHASES = {
    "fwd": ("forward", "#4477aa"),
    "recompute": ("recompute", "#88ccee"),
    "bwd": ("backward", "#cc6677"),
    "grad_sync": ("gradient sync", "#ddcc77"),
    "optimizer": ("optimizer", "#117733"),
}
_COMMUNICATION = ("send / recv, all phases", "#555555")
_RESOLUTION = 4000  # bars closer than this part of the picture's width are drawn as one
_ZOOM_MICROBATCHES = 3
_COLUMNS = ("kind", "phase", "start_ps", "end_ps")

BoolArray = npt.NDArray[np.bool_]
Bars = dict[str, Intervals]


def write_plot(timeline: Timeline, path: Path, ranks: list[int]) -> None:
    """Draw one row per rank of ``ranks`` into ``path`` (PNG, SVG or PDF by suffix).

    The upper picture is the whole step, the lower one a few microbatches in its middle.  Errors:
    InputError for an unknown rank or suffix, or when matplotlib is not installed.
    """
    info = timeline.info
    window = info.step_ps * min(_ZOOM_MICROBATCHES / max(info.workload.num_microbatches, 1), 1.0)
    middle = info.step_ps / 2
    by_rank = {rank: _bars(timeline, rank) for rank in ranks}
    with new_figure(path, 12, 1.6 + 0.5 * len(ranks)) as figure:
        whole, zoom = figure.subplots(2, 1)
        _draw(whole, timeline, by_rank, 0.0, float(info.step_ps))
        _draw(zoom, timeline, by_rank, middle - window / 2, middle + window / 2)
        whole.set_title(f"{info.workload.name}: one step, {format_time(info.step_ps)}", loc="left")
        zoom.set_title("its middle", loc="left")
        zoom.set_xlabel("time in s")
        colour_legend(figure, [*_PHASES.values(), _COMMUNICATION])


def _bars(timeline: Timeline, rank: int) -> Bars:
    """Covered time of a rank's stage work by phase, and of its sends and recvs under ""."""
    rows = timeline.rank_rows(rank, _COLUMNS)
    start, end = rows.ints("start_ps"), rows.ints("end_ps")
    kind, kind_names = rows.strings("kind")
    phase, phase_names = rows.strings("phase")

    def mask(
        codes: npt.NDArray[np.int32], names: list[str], wanted: tuple[str, ...]
    ) -> npt.NDArray[np.bool_]:
        return np.isin(codes, [code for code, name in enumerate(names) if name in wanted])

    p2p = mask(kind, kind_names, P2P_KINDS)
    work = mask(kind, kind_names, COMPUTE_KINDS + COMMUNICATION_KINDS) & ~p2p
    bars = {"": Intervals.union(start[p2p], end[p2p])}
    for name in _PHASES:
        chosen = work & mask(phase, phase_names, (name,))
        bars[name] = Intervals.union(start[chosen], end[chosen])
    return bars


def _draw(axes: Axes, timeline: Timeline, by_rank: dict[int, Bars], begin: float, end: float) -> None:
    for row, bars in enumerate(by_rank.values()):
        for name, (_, colour) in _PHASES.items():
            spans = _visible(bars[name], begin, end)
            axes.broken_barh(spans, (row - 0.4, 0.6), facecolors=colour, linewidth=0)
        spans = _visible(bars[""], begin, end)
        axes.broken_barh(spans, (row + 0.25, 0.15), facecolors=_COMMUNICATION[1], linewidth=0)
    axes.set_xlim(begin / PS_PER_S, end / PS_PER_S)
    axes.set_ylim(len(by_rank) - 0.4, -0.6)
    axes.set_yticks(range(len(by_rank)), [_label(timeline, rank) for rank in by_rank])
    axes.spines[["top", "right"]].set_visible(False)


def _label(timeline: Timeline, rank: int) -> str:
    stage = int(timeline.rank_rows(rank, ("stage",)).ints("stage")[0])
    return f"stage {stage}, rank {rank}"


def _visible(bars: Intervals, begin: float, end: float) -> list[tuple[float, float]]:
    """(start, length) in s of the bars in the window, those that no pixel parts merged."""
    inside = (bars.end > begin) & (bars.start < end)
    start, stop = bars.start[inside], bars.end[inside]
    if len(start) == 0:
        return []
    merged = _merge_gaps(start, stop, (end - begin) / _RESOLUTION)
    lengths = (merged.end - merged.start) / PS_PER_S
    return list(zip((merged.start / PS_PER_S).tolist(), lengths.tolist(), strict=True))


def _merge_gaps(start: IntArray, end: IntArray, gap: float) -> Intervals:
    opens = np.concatenate([[True], start[1:] - end[:-1] > gap])
    return Intervals(start[opens], end[np.append(opens[1:], True)])
