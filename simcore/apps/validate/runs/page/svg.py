"""Small SVG plots without a plotting library: a frame with titled axes, and marks in it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final
from xml.sax.saxutils import escape

from simcore.records import dataclass

MEASURED: Final = "#c0392b"
PREDICTED: Final = "#9cc3e6"
CHOSEN: Final = "#1f5f99"
_TOP: Final = 40


@dataclass(frozen=True)
class Frame:
    """A plot's area in pixels, and the value at its upper edge; values start at 0."""

    title: str
    y_title: str
    top: float
    width: int = 520
    height: int = 290
    left: int = 62
    right: int = 52
    bottom: int = 48

    @property
    def inner(self) -> tuple[float, float]:
        """Left and right end of the area."""
        return float(self.left), float(self.width - self.right)

    def y(self, value: float) -> float:
        """Pixel of a value."""
        return self.height - self.bottom - value / self.top * (self.height - self.bottom - _TOP)

    def document(self, marks: Iterable[str], *, x_title: str, legend: Sequence[tuple[str, str]]) -> str:
        """The whole picture: ``marks`` in the frame; ``legend``: colour and what it stands for."""
        middle = sum(self.inner) / 2
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}"'
            ' font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>',
            text(middle, 15, self.title, bold=True), text(middle, self.height - 6, x_title),
            turned(13, (_TOP + self.height - self.bottom) / 2, self.y_title),
        ]  # fmt: skip
        parts += self._grid()
        parts += marks
        x = self.left + 4.0
        for colour, meaning in legend:
            parts.append(f'<rect x="{x:.1f}" y="23" width="10" height="8" fill="{colour}"/>')
            parts.append(text(x + 14, 31, meaning, anchor="start"))
            x += 28 + 5.6 * len(meaning)
        return "\n".join([*parts, "</svg>"]) + "\n"

    def _grid(self) -> list[str]:
        left, right = self.inner
        lines = []
        for value in ticks(self.top):
            at = self.y(value)
            lines.append(line(left, at, right, at, "#ddd"))
            lines.append(text(left - 6, at + 4, f"{value:g}", anchor="end"))
        return lines


def ticks(top: float) -> list[float]:
    """Three to eight round values from 0 to ``top``."""
    step = 10 ** math.floor(math.log10(top))
    while top / step < 3:
        step /= 2
    return [k * step for k in range(int(top / step) + 1)]


def text(
    x: float, y: float, words: str, *, anchor: str = "middle", bold: bool = False, colour: str = "black"
) -> str:
    """Words at a point."""
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"{weight}>{escape(words)}</text>'
    )


def turned(x: float, y: float, words: str, *, degrees: int = -90, anchor: str = "middle") -> str:
    """Words along another direction."""
    where = f'transform="translate({x:.1f} {y:.1f}) rotate({degrees})"'
    return f'<text {where} text-anchor="{anchor}">{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, colour: str, *, dashed: bool = False) -> str:
    """A straight line."""
    dashes = ' stroke-dasharray="5 3"' if dashed else ""
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}"{dashes}/>'


def dot(x: float, y: float, colour: str) -> str:
    """A round mark."""
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>'


def bar(x: float, low: float, high: float, colour: str) -> str:
    """A bar around ``x`` between two pixels; a narrow band stays visible."""
    top, bottom = min(low, high), max(low, high)
    height = max(2.0, bottom - top)
    return f'<rect x="{x - 7:.1f}" y="{top:.1f}" width="14" height="{height:.1f}" fill="{colour}"/>'
