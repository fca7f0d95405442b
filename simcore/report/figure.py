"""A figure of matplotlib's, written whole or not at all.  The only module that imports it: it is optional."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from simcore.errors import InputError
from simcore.files import whole_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Axes", "Figure", "colour_legend", "new_figure", "rgba"]


@contextmanager
def new_figure(path: Path, width: float, height: float, *, dpi: int = 150) -> Iterator[Figure]:
    """A figure of inches to draw on, which is then written to ``path`` (PNG, SVG or PDF by suffix).

    Errors: InputError for an unknown suffix, or when matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError("plots need matplotlib: pip install matplotlib, or make setup") from error
    figure = Figure(figsize=(width, height), layout="constrained", dpi=dpi)
    yield figure
    try:
        with whole_file(path) as fresh:
            figure.savefig(fresh)
    except ValueError as error:
        raise InputError(f"cannot draw {path}: {error}") from error


def rgba(colour: str) -> tuple[float, float, float, float]:
    """A colour's red, green, blue and opacity, from 0 to 1."""
    from matplotlib.colors import to_rgba

    found: tuple[float, float, float, float] = to_rgba(colour)
    return found


def colour_legend(figure: Figure, labels: Iterable[tuple[str, str]], *, in_a_row: int = 0) -> None:
    """(label, colour) below all that is drawn, ``in_a_row`` so many (0: all)."""
    from matplotlib.patches import Patch

    patches = [Patch(color=colour, label=label) for label, colour in labels]
    figure.legend(handles=patches, loc="outside lower center", ncols=in_a_row or len(patches), frameon=False)
