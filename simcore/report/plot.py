"""A picture of a step: stages over time, what they compute above what they move."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from simcore.analysis.passes import COLUMNS, RankPasses, Spans, rank_passes
from simcore.report.figure import colour_legend, new_figure, rgba
from simcore.timeline.reader import Timeline
from simcore.units import PS_PER_S, format_time

if TYPE_CHECKING:
    from simcore.report.figure import Axes

#: Phase -> (label, colour); told apart by lightness as well as hue.
_PHASES: Final = {
    "fwd": ("forward", "#4477aa"),
    "recompute": ("recompute", "#88ccee"),
    "bwd": ("backward", "#cc6677"),
    "grad_sync": ("gradient kernels", "#997700"),
    "optimizer": ("optimizer", "#117733"),
}
_OTHER_KERNELS: Final = ("other kernels", "#8c959f")
#: Axis -> (label, colour) of communication, each a lane of its own.
_AXES: Final = {
    "tensor": ("tensor parallel", "#aa4499"),
    "context": ("context parallel", "#999933"),
    "expert": ("expert parallel", "#882255"),
    "pipeline": ("send / recv", "#444a52"),
    "data": ("data parallel", "#ddaa33"),
    "other": ("other communication", "#bbbbbb"),
}
_COLUMNS: Final = 2400  # of a lane: more than a picture has pixels
_LANE_ROWS: Final = 24  # in which a column shows the share of each phase
_HEIGHT, _THIN = 0.5, 0.09  # of a row: what is computed, and each lane of communication
_ZOOM_MICROBATCHES: Final = 6


def write_plot(timeline: Timeline, path: Path, ranks: list[int]) -> None:
    """Draw one row per rank of ``ranks`` into ``path`` (PNG, SVG or PDF by suffix).

    A column of a lane is divided as its time is, so that passes narrower than a pixel do not turn into
    stripes.  The upper picture is the whole step; the lower one, where there are many microbatches, a few in
    its middle, with their numbers.  Errors: InputError for an unknown rank or suffix, or when matplotlib is
    not installed.
    """
    info = timeline.info
    rows = [rank_passes(timeline.rank_rows(rank, COLUMNS), info.step_ps) for rank in ranks]
    lanes = [name for name in _AXES if any(name in row.lanes for row in rows)]
    count = info.workload.num_microbatches
    zoomed = count > 2 * _ZOOM_MICROBATCHES
    with new_figure(path, 12, (2 if zoomed else 1) * (0.7 + 0.42 * len(rows)) + 0.6) as figure:
        axes = figure.subplots(2 if zoomed else 1, 1, squeeze=False)[:, 0]
        _draw(axes[0], rows, lanes, 0.0, float(info.step_ps))
        axes[0].set_title(f"{info.workload.name}: one step, {format_time(info.step_ps)}", loc="left")
        if zoomed:
            half = info.step_ps * _ZOOM_MICROBATCHES / count / 2
            _draw(axes[1], rows, lanes, info.step_ps / 2 - half, info.step_ps / 2 + half, numbered=True)
            axes[1].set_title(f"{_ZOOM_MICROBATCHES} of {count} microbatches in its middle", loc="left")
        axes[-1].set_xlabel("time in s")
        shown = {name for row in rows for name in row.compute.kinds if (_kind(row, name)).any()}
        labels = [label for name, label in _PHASES.items() if name in shown]
        labels += [_OTHER_KERNELS] if shown - _PHASES.keys() else []
        colour_legend(figure, [*labels, *(_AXES[name] for name in lanes)], in_a_row=6)


def _kind(row: RankPasses, name: str) -> npt.NDArray[np.bool_]:
    return np.asarray(row.compute.kind == row.compute.kinds.index(name))


def _draw(
    axes: Axes, rows: list[RankPasses], lanes: list[str], begin: float, end: float, *, numbered: bool = False
) -> None:
    extent = (begin / PS_PER_S, end / PS_PER_S)
    for number, row in enumerate(rows):
        top = number - 0.42
        colours = [_PHASES.get(name, _OTHER_KERNELS)[1] for name in row.compute.kinds]
        image = _lane(row.compute, begin, end, colours)
        axes.imshow(image, extent=(*extent, top + _HEIGHT, top), aspect="auto", interpolation="none")
        for place, name in enumerate(lanes):
            if name in row.lanes:
                image = _thin_lane(row.lanes[name], begin, end, _AXES[name][1])
                low = top + _HEIGHT + 0.02 + place * _THIN
                axes.imshow(
                    image, extent=(*extent, low + _THIN - 0.02, low), aspect="auto", interpolation="none"
                )
        if numbered:
            _numbers(axes, row.compute, begin, end, top + _HEIGHT / 2)
    axes.set_xlim(*extent)
    axes.set_ylim(len(rows) - 0.4, -0.5)
    axes.set_yticks(range(len(rows)), [f"stage {row.stage}, rank {row.rank}" for row in rows])
    axes.spines[["top", "right"]].set_visible(False)


def _numbers(axes: Axes, passes: Spans, begin: float, end: float, middle: float) -> None:
    """The microbatch of each pass that is wide enough to be told."""
    for first, last, microbatch in zip(
        passes.start.tolist(), passes.end.tolist(), passes.microbatch.tolist(), strict=True
    ):
        left, right = max(first, begin), min(last, end)
        if microbatch >= 0 and right - left > 0.02 * (end - begin):
            at = (left + right) / 2 / PS_PER_S
            axes.text(at, middle, str(microbatch), ha="center", va="center", fontsize=7, color="white")


def _lane(spans: Spans, begin: float, end: float, colours: list[str]) -> npt.NDArray[np.float64]:
    """A lane as an image: in each column the kinds one below the other, by their share of its time."""
    share = np.stack([_coverage(spans, number, begin, end) for number in range(len(colours))])
    level = (np.arange(_LANE_ROWS) + 0.5) / _LANE_ROWS
    kind = (level[:, None, None] > np.cumsum(share, axis=0).T[None]).sum(axis=2)
    image: npt.NDArray[np.float64] = np.array([*map(rgba, colours), (0.0, 0.0, 0.0, 0.0)])[kind]
    return image


def _thin_lane(spans: Spans, begin: float, end: float, colour: str) -> npt.NDArray[np.float64]:
    """A lane of one colour, as dense as it is busy."""
    image = np.tile(np.array(rgba(colour)), (1, _COLUMNS, 1))
    image[0, :, 3] = sum(_coverage(spans, number, begin, end) for number in range(len(spans.kinds)))
    return image.clip(0.0, 1.0)


def _coverage(spans: Spans, kind: int, begin: float, end: float) -> npt.NDArray[np.float64]:
    """Share of each column that stretches of a kind cover."""
    scale = _COLUMNS / (end - begin)
    chosen = (spans.kind == kind) & (spans.end > begin) & (spans.start < end)
    left = np.clip((spans.start[chosen] - begin) * scale, 0, _COLUMNS)
    right = np.clip((spans.end[chosen] - begin) * scale, 0, _COLUMNS)
    # The area under steps is the difference of two ramps, summed up at whole columns.
    grid = np.arange(_COLUMNS + 1)
    order_l, order_r = np.sort(left), np.sort(right)
    before_l, before_r = np.searchsorted(order_l, grid), np.searchsorted(order_r, grid)
    sum_l, sum_r = np.concatenate([[0], np.cumsum(order_l)]), np.concatenate([[0], np.cumsum(order_r)])
    covered = (before_l * grid - sum_l[before_l]) - (before_r * grid - sum_r[before_r])
    found: npt.NDArray[np.float64] = np.clip(np.diff(covered), 0.0, 1.0)
    return found
