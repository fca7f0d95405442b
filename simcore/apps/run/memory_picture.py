"""What stages hold over a step, by category, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from simcore.report.figure import colour_legend, new_figure
from simcore.units import GIB

if TYPE_CHECKING:
    from simcore.memory.lifetimes import StageLifetimes
    from simcore.memory.played import PlayedStage

#: Points of each curve: as many as a picture has columns.
_POINTS: Final = 1200
_MOST_STAGES: Final = 6
_COLOURS: Final = (
    "#4477aa", "#66ccee", "#228833", "#ccbb44", "#ee6677", "#aa3377", "#bbbbbb", "#997700", "#222255",
)  # fmt: skip


def write_picture(stages: Sequence[PlayedStage], available_bytes: int, path: Path) -> None:
    """Each stage's categories one above the other, what is reserved, and what there is, event by event.

    Errors: InputError for a suffix that is none of a picture's, or without matplotlib.
    """
    shown = sorted(
        sorted(stages, key=lambda one: -one.memory.peak_reserved)[:_MOST_STAGES], key=lambda one: one.stage
    )
    held = [held_over_time(one.lifetimes) for one in shown]
    names = list(dict.fromkeys(name for of_stage in held for name in of_stage))
    colours = dict(zip(names, _COLOURS, strict=False))
    with new_figure(path, 9, 1 + 2.4 * len(shown)) as figure:
        for axes, stage, of_stage in zip(
            figure.subplots(len(shown), squeeze=False)[:, 0], shown, held, strict=True
        ):
            reserved = stage.memory.reserved
            at = np.unique(np.linspace(0, len(reserved) - 1, _POINTS).astype(np.int64))
            at = np.unique(np.append(at, stage.peak_event))
            axes.stackplot(
                at,
                [level[at] / GIB for level in of_stage.values()],
                colors=[colours[name] for name in of_stage],
            )
            axes.plot(at, reserved[at] / GIB, color="black", linewidth=0.8)
            axes.axhline(available_bytes / GIB, color="#cc3311", linestyle="--", linewidth=0.8)
            axes.axvline(stage.peak_event, color="black", linestyle=":", linewidth=0.8)
            axes.set_title(f"stage {stage.stage}: most at {stage.instant}", fontsize=9, loc="left")
            axes.set_xlim(0, len(reserved))
            axes.set_ylabel("GiB")
        axes.set_xlabel("allocations and releases; black: reserved, dashed: what there is, dotted: the peak")
        colour_legend(figure, list(colours.items()), in_a_row=5)


def held_over_time(lifetimes: StageLifetimes) -> dict[str, npt.NDArray[np.int64]]:
    """Bytes that storages of each category hold after each event; categories that hold any, in order."""
    events = lifetimes.events
    order = list(dict.fromkeys(holder.category for holder in lifetimes.holders))
    category = np.array([order.index(holder.category) for holder in lifetimes.holders], dtype=np.int64)
    allocates = events.num_bytes >= 0
    of = np.zeros(int(events.storage.max(initial=0)) + 1, dtype=np.int64)
    of[events.storage[allocates]] = category[lifetimes.holder[allocates]]
    of_event, change = of[events.storage], lifetimes.changes
    levels = {name: np.cumsum(np.where(of_event == number, change, 0)) for number, name in enumerate(order)}
    return {name: level for name, level in levels.items() if level.any()}
