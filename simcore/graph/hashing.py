"""A graph's identity: sha256 over its content, whatever the file layout or dictionary order."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from simcore.distinct import distinct
from simcore.graph.graph import Graph, Program
from simcore.graph.groups import ProcessGroup
from simcore.graph.ops import EdgeTable, FreeTable, OpTable, Strings, stored_name

#: Workload fields that say what a graph is called and how it was made, not what it is.
PROVENANCE = ("name", "command", "versions")


def canonical(strings: Strings) -> Strings:
    """The same column with a sorted dictionary of used values only: equal columns get equal codes."""
    used = distinct(strings.codes)
    values = sorted({strings.values[code] for code in used})
    index = {value: code for code, value in enumerate(values)}
    renumber = np.zeros(len(strings.values), dtype=np.int32)
    for code in used:
        renumber[code] = index[strings.values[code]]
    return Strings(renumber[strings.codes].astype(np.int32), tuple(values))


def records(graph: Graph) -> dict[str, Any]:
    """Groups, programs and names of templates as JSON values."""
    return {
        "groups": [_group_record(graph.groups[name]) for name in sorted(graph.groups)],
        "programs": [_program_record(program) for program in graph.programs],
        "template_names": list(graph.template_names),
    }


def _group_record(group: ProcessGroup) -> dict[str, Any]:
    """A process group as JSON values."""
    return {
        "name": group.name,
        "dims": [list(dim) for dim in group.dims],
        "base_dims": [list(dim) for dim in group.base_dims],
        "offset": group.offset,
        "explicit": [list(members) for members in group.explicit],
    }


def _program_record(program: Program) -> dict[str, Any]:
    """A program without its skeleton, as JSON values."""
    return {
        "name": program.name,
        "ranks": [list(span) for span in program.ranks],
        "stage": program.stage,
        "layer_offset": list(program.layer_offset),
        "memory": asdict(program.memory),
    }


def graph_hash(graph: Graph) -> str:
    """sha256 (hex) of everything that can change a simulation.

    Independent of dictionary order, of the order of ``graph.groups`` and of the workload's provenance
    (:data:`PROVENANCE`).
    """
    digest = hashlib.sha256()
    workload = {key: value for key, value in asdict(graph.workload).items() if key not in PROVENANCE}
    header = {"workload": workload, **records(graph)}
    _feed_text(digest, json.dumps(header, sort_keys=True, separators=(",", ":")))
    for program in graph.programs:
        for column in (program.template, program.microbatch, program.chunk):
            _feed_ints(digest, column)
    _feed_ints(digest, graph.template_start)
    for table in (graph.ops, graph.edges, graph.frees):
        _feed_table(digest, table)
    return digest.hexdigest()


def _feed_table(digest: hashlib._Hash, table: OpTable | EdgeTable | FreeTable) -> None:
    for spec in fields(table):
        column = getattr(table, spec.name)
        _feed_text(digest, stored_name(spec.name) if isinstance(table, OpTable) else spec.name)
        if isinstance(column, Strings):
            same = canonical(column)
            _feed_text(digest, json.dumps(same.values))
            _feed_ints(digest, same.codes)
        else:
            _feed_ints(digest, column)


def _feed_ints(digest: hashlib._Hash, column: npt.NDArray[np.integer]) -> None:
    digest.update(len(column).to_bytes(8, "little"))
    digest.update(np.ascontiguousarray(column, dtype="<i8").tobytes())


def _feed_text(digest: hashlib._Hash, text: str) -> None:
    encoded = text.encode()
    digest.update(len(encoded).to_bytes(8, "little"))
    digest.update(encoded)
