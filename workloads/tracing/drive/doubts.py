"""Is a traced step what the program really does?  What assumed answers may have spoiled, and what to say."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from simcore.errors import InputError
from simcore.graph import Graph
from simcore.graph.ops import OpKind

_NO_ELEMENTS = re.compile(r"^\[\[(?:\d{1,12},)*0[,\]]")
_SITES_SHOWN = 3


def doubts(graph: Graph, values: Iterable[Mapping[str, Any]]) -> list[str]:
    """Warnings about the traced ``graph``; ``values``: what was answered while tracing, as in ``trace.json``.

    InputError for a step that computes nothing although it asked for values that are not known.
    """
    values = list(values)
    assumed = assumed_values(values)
    whole = [one for one in assumed if one["rule"].endswith("integer")]
    advice = _advice(whole or assumed)
    found = []
    if not graph.ops.flops.any():
        message = "no operation of the step has flops"
        if assumed:
            raise InputError(f"{message}: the model may have run on nothing{advice}")
        found.append(message)
    empty = _first_without_elements(graph)
    if empty and assumed:
        found.append(f"{empty} has a dimension of 0{advice}")
    elif whole:
        found.append(
            "integers that are not known were answered by the least that they can be, sizes or loops may "
            f"depend on them{advice}"
        )
    large = [one for one in assumed if one["rule"].startswith("computed of more elements")]
    if large:
        found.append(
            "values that follow from the host's were too large to be followed; branches may depend on what "
            f"was answered instead{_advice(large)}"
        )
    counted = [one for one in assumed if one["kind"] == "share"]
    if counted:
        found.append(
            "how many entries are selected is not known: all that can be, so what is computed of them is an "
            f"upper bound{_advice(counted)}"
        )
    found += list(dict.fromkeys(one["rule"] for one in values if one["kind"] == "missing"))
    found += [f"{one['rule']} (at {one['site']})" for one in values if one["kind"] in ("refused", "late")]
    failures = dict.fromkeys(
        f"{one['rule']} (at {one['site']})" for one in values if one["kind"] == "failure"
    )
    found += [
        f"a forward or backward pass of the step failed, and the script went on without it: {one}"
        for one in failures
    ]
    groups = list(dict.fromkeys(one["site"] for one in values if one["kind"] == "groups"))
    if groups:
        found.append(
            f"how rows are spread over the groups of a product (tokens over experts) is not known at "
            f"{', '.join(groups[:_SITES_SHOWN])}: evenly, here; a group with more of them takes that much "
            f"longer, and so do those who wait for it"
        )
    evaluations = list(dict.fromkeys(one["site"] for one in values if one["kind"] == "evaluation"))
    if evaluations:
        found.append(
            f"the model is evaluated inside the step, at {', '.join(evaluations[:_SITES_SHOWN])}; --steps "
            f"keeps another step"
        )
    return found


def assumed_values(values: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those that nobody knows, on which shapes, loops and branches may depend."""
    return [one for one in values if not one["overridden"] and one["kind"] in ("item", "share", "size")]


def said_before(values: Iterable[Mapping[str, Any]]) -> str:
    """The answers that a failure may come from, whole numbers before others and the last first; "": none."""
    assumed = assumed_values(values)
    whole = [one for one in assumed if one["rule"].endswith("integer") or one["kind"] != "item"]
    shown = [f"{one['answer']:g} at {one['site']} ({one['rule']})" for one in reversed(whole or assumed)][
        :_SITES_SHOWN
    ]
    return f"{', '.join(shown)}; --value FILE.py:LINE=... answers otherwise" if shown else ""


def _advice(values: Iterable[Mapping[str, Any]]) -> str:
    sites = list(dict.fromkeys(one["site"] for one in values))
    if not sites:
        return ""
    shown = ", ".join(f"--value {site}=..." for site in sites[:_SITES_SHOWN])
    more = f" and {len(sites) - _SITES_SHOWN} more" if len(sites) > _SITES_SHOWN else ""
    return f"; say what was asked for there: {shown}{more}"


def _first_without_elements(graph: Graph) -> str:
    """The first kernel whose result has no elements, on all ranks of its stage, as a text; "" for none.

    Where some have elements there, the others have a shard of fewer rows than ranks, empty for real, too.
    """
    ops = graph.ops
    columns = (ops.kind.tolist(), ops.name.tolist(), ops.module.tolist(), ops.out_shapes.tolist())
    empty = [
        row
        for row, (kind, _, _, shapes) in enumerate(zip(*columns, strict=True))
        if kind == OpKind.COMPUTE and _NO_ELEMENTS.search(shapes)
    ]
    if not empty:
        return ""
    of_programs = [
        (program.stage, [row for one in {*program.template.tolist()} for row in graph.template_rows(one)])
        for program in graph.programs
    ]
    without = {*empty}
    for row in empty:
        name, module = ops.name[row], ops.module[row]
        stages = {stage for stage, rows in of_programs if row in rows}
        elsewhere = [
            {one in without for one in rows if ops.name[one] == name and ops.module[one] == module}
            for stage, rows in of_programs
            if stage in stages
        ]
        if {False} not in elsewhere:
            return f"{name} in {module!r}" if module else str(name)
    return ""
