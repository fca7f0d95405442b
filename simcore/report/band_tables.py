"""The band of a step time as a run prints it, with the measured runs that are nearest to the job."""

from __future__ import annotations

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from simcore.timeline.info import RunInfo
from simcore.units import format_time, ps_from_s

_DIFFERENCES = 3


def band_parts(info: RunInfo, step_ps: int) -> list[RenderableType]:
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
    return [*parts, _nearest(info)] if info.nearest else parts


def _nearest(info: RunInfo) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("nearest measured runs", overflow="fold")
    table.add_column("what differs there", overflow="fold")
    for number in ("predicted", "measured", "error"):
        table.add_column(number, justify="right", no_wrap=True)
    for run in info.nearest:
        differs = ", ".join(run.differs[:_DIFFERENCES]) or "nothing that counts"
        more = len(run.differs) - _DIFFERENCES
        table.add_row(
            run.id,
            differs + (f", {more} more" if more > 0 else ""),
            format_time(ps_from_s(run.predicted_s)),
            format_time(ps_from_s(run.measured_s)),
            f"{run.error:+.1%}",
        )
    return table
