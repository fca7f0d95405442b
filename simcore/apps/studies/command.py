"""``fidelity-study``: fluid against packets, packets against published figures and ns-3."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simcore.apps.options import Json
from simcore.apps.progress import say
from simcore.errors import InputError
from simcore.outside import quoted
from simcore.units import MIB

if TYPE_CHECKING:
    from simcore.apps.studies.compare import CaseResult
    from simcore.apps.studies.ns3.runner import Ns3
    from simcore.apps.studies.references import Reference


def fidelity_study(
    as_json: Json = False,
    quick: Annotated[bool, typer.Option("--quick", help="A sample of the cases, under a minute.")] = False,
    plot: Annotated[Path | None, typer.Option(metavar="SVG", help="Draw the differences by size.")] = None,
    rails: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RANKS:MIB",
            help="Only the published case of nodes of 8 GPUs on rails, at this size; may be repeated.",
        ),
    ] = None,
    ns3: Annotated[
        bool,
        typer.Option(
            "--ns3",
            help="Only packets against ns-3: run where installed (pkg-config or NS3_ROOT), else as recorded.",
        ),
    ] = False,
    record: Annotated[bool, typer.Option("--record", help="With --ns3: keep what this ns-3 says.")] = False,
) -> None:
    """Fluid against packets on the same schedules, packets against published figures, what segments cost."""
    import json

    from simcore.apps.studies.cases import traffic_cases
    from simcore.apps.studies.compare import check_convergence, compare
    from simcore.apps.studies.ns3 import check_ns3
    from simcore.apps.studies.references import check_references
    from simcore.apps.studies.show import fidelity_text, ns3_lines, reference_lines, scatter_svg
    from simcore.files import whole_text

    if ns3:
        found = list(check_ns3(_ns3(record)))
        shown = {"ns3": [row.as_dict() for row in found]}
        print(json.dumps(shown) if as_json else "\n".join(ns3_lines(found)))
        return
    if rails:
        asked = [_rails(text) for text in rails]
        shown = {"references": [row.as_dict() for row in asked]}
        print(json.dumps(shown) if as_json else "\n".join(reference_lines(asked)))
        return
    study = compare(traffic_cases(quick), progress=_tell)
    references = list(check_references(quick))
    convergence = list(check_convergence(quick))
    if plot is not None:
        whole_text(plot, scatter_svg(study.cases))
    whole = {
        **study.as_dict(),
        "references": [row.as_dict() for row in references],
        "convergence": [vars(row) for row in convergence],
    }
    print(json.dumps(whole) if as_json else fidelity_text(study, references, convergence))


def _ns3(keep: bool) -> Ns3 | None:
    from simcore.apps.studies.ns3.check import record
    from simcore.apps.studies.ns3.runner import find_ns3

    found = find_ns3()
    if found is None:
        if keep:
            raise InputError("--record needs ns-3: install libns3-dev, or set NS3_ROOT to its prefix")
        say("ns-3 is not installed: against what was recorded")
    elif keep:
        record(found)
    return found


def _rails(text: str) -> Reference:
    from simcore.apps.studies.references import rails_reference

    found = re.fullmatch("([0-9]{1,8}):([1-9][0-9]{0,7})", text)
    if found is None:
        raise InputError(f"--rails {quoted(text)} is not RANKS:MIB, such as 64:16")
    say(f"{text} ...")
    return rails_reference(int(found[1]), int(found[2]) * MIB)


def _tell(case: CaseResult) -> None:
    say(f"{case.name:64} {case.percent:+7.2f}%")
