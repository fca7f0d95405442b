"""Activations of edited programs: those of the old one, for other numbers of layers and microbatches held."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from simcore.graph import Graph, Program
from simcore.memory import ProgramMemory, peak_memory

ASSUMED = (
    "activations held from forward to backward in proportion to layers and microbatches held at a time,"
    " what one backward needs besides as before, both in proportion to what forwards write"
)


def held_at_once(steps: Iterable[bool]) -> int:
    """The most forwards whose backward is still to come, of a sequence of forwards (True) and backwards."""
    now = most = 0
    for forward in steps:
        now += 1 if forward else -1
        most = max(most, now)
    return max(1, most)


def program_holds(graph: Graph, program: Program) -> int:
    """:func:`held_at_once` of a program's forwards and backwards."""
    names = [graph.template_names[template] for template in program.template.tolist()]
    return held_at_once(name == "fwd" for name in names if name in ("fwd", "bwd"))


def activations(graph: Graph) -> dict[str, int]:
    """Bytes of activations at the peak, by program."""
    return {found.program: found.activations for found in peak_memory(graph)}


def regrouped(memory: ProgramMemory, share: float) -> int:
    """Bytes at the peak with ``share`` times the layers and microbatches held.

    What forwards saved goes with the share; what one backward needs besides does not.  Where only the peak is
    known, all of it is taken for saved.
    """
    saved = memory.in_flight if memory.peak_instance >= 0 else memory.activations
    return round(memory.activations - saved + saved * share)


def written_ratio(graph: Graph, program: Program, new_bytes: Mapping[int, str | int]) -> float:
    """What a program's forwards write with ``new_bytes`` of some rows, over what they wrote before."""
    old = new = 0
    for template in np.unique(program.template).tolist():
        if graph.template_names[template] != "fwd":
            continue
        for row in graph.template_rows(template):
            written = int(graph.ops.bytes_written[row])
            old += written
            new += int(new_bytes.get(row, written))
    return new / old if old else 1.0
