"""The command ``fidelity_study``: fluid against packets, packets against published figures."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from simcore.apps.studies.cases import scenarios
from simcore.apps.studies.compare import CaseResult, Comparison, compare
from simcore.apps.studies.convergence import Convergence, check_convergence
from simcore.apps.studies.ns3 import Ns3Row, check_ns3
from simcore.apps.studies.ns3.check import record
from simcore.apps.studies.ns3.runner import Ns3, find_ns3
from simcore.apps.studies.picture import scatter_svg
from simcore.apps.studies.references import Reference, check_references, rails_reference
from simcore.errors import InputError, SimcoreError
from simcore.units import MIB, format_bytes

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
        found = compare(scenarios(options.quick), progress=_say)
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


def _text(found: Comparison, references: list[Reference], convergence: list[Convergence]) -> str:
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
