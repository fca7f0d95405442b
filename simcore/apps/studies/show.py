"""What the fidelity study shows: tables for a terminal, and the differences by size as a small SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from simcore.apps.studies.compare import CaseResult, Convergence, NetworkComparison
from simcore.apps.studies.ns3 import Ns3Row
from simcore.apps.studies.references import Reference
from simcore.units import KIB, format_bytes

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 720, 360, 60, 44, 16, 190
_COLOURS: Final = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#555555")
_LINES: Final = (0.0, 1.0, 5.0, 20.0, 50.0, 200.0, 1000.0)
_SIZES: Final = tuple(64 * KIB * 4**step for step in range(8))  # 64 KiB to 1 GiB


def fidelity_text(
    found: NetworkComparison, references: list[Reference], convergence: list[Convergence]
) -> str:
    """All of the study."""
    lines = [f"{'case':64}{'fluid us':>12}{'packet us':>12}{'diff %':>9}"]
    for case in found.cases:
        lines.append(f"{case.name:64}{case.fluid_us:12.1f}{case.packet_us:12.1f}{case.percent:+9.2f}")
        if case.explanation:
            lines.append(f"    {case.explanation}")
    totals = found.as_dict()
    lines += [
        "",
        f"from 1 MiB: mean {totals['mean_percent']:.2f}%, worst {totals['worst_percent']:.2f}%,"
        f" {totals['above_5_percent']} of {len(found.percents(2**20))} above 5%",
        f"all sizes: mean {totals['mean_percent_all_sizes']:.2f}%,"
        f" worst {totals['worst_percent_all_sizes']:.2f}%",
        f"fluid {found.fluid_cpu_s:.2f} s, packets {found.packet_cpu_s:.1f} s"
        f" ({found.packet_events:,} events): {found.speedup:.0f} times faster",
        "",
        *reference_lines(references),
    ]
    lines += ["", f"{'segments, against the finest':64}{'segment':>12}{'us':>12}{'diff %':>9}"]
    for step in convergence:
        size = format_bytes(step.segment_bytes)
        lines.append(f"{step.name:64}{size:>12}{step.packet_us:12.1f}{step.percent:+9.2f}")
    return "\n".join(lines)


def reference_lines(rows: list[Reference]) -> list[str]:
    """Packets beside published figures."""
    lines = [f"{'packets against published figures':76}{'theirs us':>12}{'ours us':>12}{'diff %':>9}"]
    for row in rows:
        size = format_bytes(row.num_bytes)
        name = f"{row.name}, {size} x{row.ranks} (ideal {row.ideal_us:.1f})"
        if row.published_us is None or row.percent is None:
            lines.append(f"{name:76}{'':12}{row.packet_us:12.1f}")
        else:
            lines.append(f"{name:76}{row.published_us:12.1f}{row.packet_us:12.1f}{row.percent:+9.2f}")
    return lines


def ns3_lines(rows: Sequence[Ns3Row]) -> list[str]:
    """Packets beside ns-3 with the same transport."""
    return [
        f"{'packets against ns-3, one transport':48}{'ns-3 us':>12}{'ours us':>12}{'diff %':>9}",
        *(
            f"{row.name:48}{row.ns3_us:12.1f}{row.packet_us:12.1f}{row.percent:+9.2f}  {row.source}"
            for row in rows
        ),
    ]


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
