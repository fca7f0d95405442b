"""The command ``fidelity_study``: fluid against packets, packets against published figures."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from simcore.apps.studies.cases import traffic_cases
from simcore.apps.studies.compare import (
    CaseResult,
    Convergence,
    NetworkComparison,
    check_convergence,
    compare,
)
from simcore.apps.studies.ns3 import Ns3Row, check_ns3
from simcore.apps.studies.ns3.check import record
from simcore.apps.studies.ns3.runner import Ns3, find_ns3
from simcore.apps.studies.references import Reference, check_references, rails_reference
from simcore.errors import InputError, SimcoreError
from simcore.units import KIB, MIB, format_bytes

_PURPOSE = (
    "The fluid network against packets on the same schedules; packets against published figures; what larger"
    " segments cost."
)


def fidelity_study(argv: Sequence[str]) -> int:
    """``[--json] [--quick] [--plot SVG]``: compare the networks.  Returns the exit code."""
    parser = argparse.ArgumentParser(prog="fidelity_study.py", description=_PURPOSE)
    parser.add_argument("--json", action="store_true", help="one object on stdout")
    parser.add_argument("--quick", action="store_true", help="a sample of the cases, under a minute")
    parser.add_argument("--plot", metavar="SVG", type=Path, help="draw the differences by size")
    parser.add_argument(
        "--rails",
        metavar="RANKS:MIB",
        action="append",
        default=[],
        help="only the published case of nodes of 8 GPUs on rails, at this size; may be repeated",
    )
    parser.add_argument(
        "--ns3",
        action="store_true",
        help="only packets against ns-3: run where installed (pkg-config or NS3_ROOT), else as recorded",
    )
    parser.add_argument("--record", action="store_true", help="with --ns3: keep what this ns-3 says")
    options = parser.parse_args(argv)
    try:
        if options.ns3:
            _print_ns3(list(check_ns3(_ns3(options.record))), options.json)
            return 0
        if options.rails:
            _print_rows([_rails(text) for text in options.rails], options.json)
            return 0
        found = compare(traffic_cases(options.quick), progress=_say)
        references = list(check_references(options.quick))
        convergence = list(check_convergence(options.quick))
        if options.plot is not None:
            options.plot.write_text(scatter_svg(found.cases), encoding="utf-8")
    except SimcoreError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"error: cannot write {options.plot}: {error.strerror}", file=sys.stderr)
        return 2
    if options.json:
        whole = found.as_dict()
        whole["references"] = [row.as_dict() for row in references]
        whole["convergence"] = [row.as_dict() for row in convergence]
        print(json.dumps(whole))
    else:
        print(_text(found, references, convergence))
    return 0


def _ns3(keep: bool) -> Ns3 | None:
    found = find_ns3()
    if found is None:
        if keep:
            raise InputError("--record needs ns-3: install libns3-dev, or set NS3_ROOT to its prefix")
        print("ns-3 is not installed: against what was recorded", file=sys.stderr, flush=True)
    elif keep:
        record(found)
    return found


def _print_ns3(rows: list[Ns3Row], as_json: bool) -> None:
    if as_json:
        print(json.dumps({"ns3": [row.as_dict() for row in rows]}))
        return
    print(f"{'packets against ns-3, one transport':48}{'ns-3 us':>12}{'ours us':>12}{'diff %':>9}")
    for row in rows:
        print(f"{row.name:48}{row.ns3_us:12.1f}{row.packet_us:12.1f}{row.percent:+9.2f}  {row.source}")


def _rails(text: str) -> Reference:
    ranks, _, mib = text.partition(":")
    if not ranks.isdigit() or not mib.isdigit() or not int(mib):
        raise InputError(f"--rails {text!r} is not RANKS:MIB, such as 64:16")
    print(f"{text} ...", file=sys.stderr, flush=True)
    return rails_reference(int(ranks), int(mib) * MIB)


def _print_rows(rows: list[Reference], as_json: bool) -> None:
    if as_json:
        print(json.dumps({"references": [row.as_dict() for row in rows]}))
    else:
        print("\n".join(_reference_lines(rows)))


def _reference_lines(rows: list[Reference]) -> list[str]:
    lines = [f"{'packets against published figures':76}{'theirs us':>12}{'ours us':>12}{'diff %':>9}"]
    for row in rows:
        size = format_bytes(row.num_bytes)
        name = f"{row.name}, {size} x{row.ranks} (ideal {row.ideal_us:.1f})"
        if row.published_us is None or row.percent is None:
            lines.append(f"{name:76}{'':12}{row.packet_us:12.1f}")
        else:
            lines.append(f"{name:76}{row.published_us:12.1f}{row.packet_us:12.1f}{row.percent:+9.2f}")
    return lines


def _say(case: CaseResult) -> None:
    print(f"{case.name:64} {case.percent:+7.2f}%", file=sys.stderr, flush=True)


def _text(found: NetworkComparison, references: list[Reference], convergence: list[Convergence]) -> str:
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
        *_reference_lines(references),
    ]
    lines += ["", f"{'segments, against the finest':64}{'segment':>12}{'us':>12}{'diff %':>9}"]
    for step in convergence:
        size = format_bytes(step.segment_bytes)
        lines.append(f"{step.name:64}{size:>12}{step.packet_us:12.1f}{step.percent:+9.2f}")
    return "\n".join(lines)


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
