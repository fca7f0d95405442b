"""Differences by size as a small SVG, without a plotting library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from simcore.apps.studies.compare import CaseResult
from simcore.units import KIB, format_bytes

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 720, 360, 60, 44, 16, 190
_COLOURS: Final = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#555555")
_LINES: Final = (0.0, 1.0, 5.0, 20.0, 50.0, 200.0, 1000.0)
_SIZES: Final = tuple(64 * KIB * 4**step for step in range(8))  # 64 KiB to 1 GiB


def scatter_svg(cases: Sequence[CaseResult]) -> str:
    """One dot per case: size across, fluid against packet in percent upwards, as log(1 + |percent|)."""
    limit = max((abs(case.percent) for case in cases), default=0.0)
    limit = next((line for line in _LINES[2:] if line >= limit), limit)
    colour = dict(zip(sorted({case.topology for case in cases}), _COLOURS * 3, strict=False))

    def across(num_bytes: float) -> float:
        share = math.log(num_bytes / _SIZES[0]) / math.log(_SIZES[-1] / _SIZES[0])
        return _LEFT + 12 + max(0.0, min(1.0, share)) * (_WIDTH - _LEFT - _RIGHT - 24)

    def up(percent: float) -> float:
        share = math.copysign(math.log1p(abs(percent)) / math.log1p(limit), percent)
        return _TOP + (1.0 - share) / 2 * (_HEIGHT - _TOP - _BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif"'
        ' font-size="11" fill="#333"><rect width="100%" height="100%" fill="white"/>'
    ]
    for percent in sorted({sign * line for line in _LINES if line <= limit for sign in (1.0, -1.0)}):
        y = up(percent)
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{percent:+.0f}%</text>'
        )
    parts += [
        f'<text x="{across(size):.1f}" y="{_HEIGHT - 26}" text-anchor="middle">{format_bytes(size)}</text>'
        for size in _SIZES
    ]
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(
        f'<text x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">bytes; fluid time against packets</text>'
    )
    parts += [
        f'<circle cx="{across(case.num_bytes):.1f}" cy="{up(case.percent):.1f}" r="3.5" fill-opacity="0.7"'
        f' fill="{colour[case.topology]}"/>'
        for case in cases
    ]
    for row, (name, shade) in enumerate(colour.items()):
        x, y = _WIDTH - _RIGHT + 14, _TOP + 14 + 18 * row
        parts.append(
            f'<circle cx="{x}" cy="{y - 4}" r="4" fill="{shade}"/><text x="{x + 10}" y="{y}">{name}</text>'
        )
    return "\n".join([*parts, "</svg>\n"])
