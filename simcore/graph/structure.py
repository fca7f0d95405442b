"""Whether a graph's columns hang together: lengths, ranges, references.  Cheap, all vectorised.

:func:`simcore.graph.verify` goes on from here to what the ops mean.
"""

from __future__ import annotations

import math
from dataclasses import fields

import numpy as np
import numpy.typing as npt

from simcore.collectives.kinds import COLLECTIVES
from simcore.distinct import distinct
from simcore.errors import GraphError, nearest
from simcore.graph.graph import Graph, Program
from simcore.graph.groups import ProcessGroup
from simcore.graph.kinds import is_communication
from simcore.graph.ops import EdgeKind, EdgeTable, FreeTable, IntArray, OpKind, OpTable, Strings, stored_name
from simcore.units import PS_PER_S

PHASES = ("fwd", "bwd", "recompute", "optimizer", "grad_sync", "")
#: Traced and recorded programs issue these, too; a replay knows how long they took, no planner does.
_RECORDED_ONLY = ("gather", "scatter")

#: Columns whose smallest meaningful value is -1 ("none"); all other integer columns start at 0.
_FROM_MINUS_ONE = frozenset({"layer", "batch", "forward_op", "recorded_ps"})

#: Recorded durations of a rank's step in sum: ends of ops stay far below what 64 bits of picoseconds hold.
_LONGEST_STEP_S = 86_400


def check_structure(graph: Graph, where: str) -> None:
    """Raise GraphError, naming ``where``, unless every number and reference of ``graph`` is in range."""
    _check_lengths(graph, where)
    _check_ops(graph, where)
    _check_edges(graph, where)
    _check_frees(graph, where)
    for program in graph.programs:
        _check_program(graph, program, where)
    for name, group in graph.groups.items():
        if name != group.name:
            raise GraphError(f"{where}: process group {group.name!r} is filed under {name!r}")
        _check_group(graph, group, where)


def _check_group(graph: Graph, group: ProcessGroup, where: str) -> None:
    dims = (*group.dims, *group.base_dims)
    last = group.offset + sum((size - 1) * stride for size, stride in dims)
    if group.explicit:
        last = max(rank for members in group.explicit for rank in members)
    what = f"{where}: process group {group.name!r}"
    if last >= graph.world_size:
        raise GraphError(f"{what} names rank {last}, the world has {graph.world_size}")
    if not group.explicit and math.prod(size for size, _ in dims) > graph.world_size:
        raise GraphError(
            f"{what} names a rank twice: it has more members than the world of {graph.world_size}"
        )


def _check_lengths(graph: Graph, where: str) -> None:
    tables: tuple[OpTable | EdgeTable | FreeTable, ...] = (graph.ops, graph.edges, graph.frees)
    for table in tables:
        for spec in fields(table):
            column = getattr(table, spec.name)
            what = f"{where}: {type(table).__name__}.{spec.name}"
            if len(column) != len(table):
                raise GraphError(f"{what} has {len(column)} rows, the table has {len(table)}")
            if isinstance(column, Strings):
                if len(set(column.values)) != len(column.values):
                    raise GraphError(f"{what}: its dictionary holds a string twice")
                _check_range(column.codes, 0, len(column.values), f"{what} (string code)")
            elif column.dtype.kind != "i":
                raise GraphError(f"{what} has dtype {column.dtype}, expected integers")
    starts = graph.template_start
    if len(starts) != len(graph.template_names) + 1 or starts[0] != 0 or starts[-1] != len(graph.ops):
        raise GraphError(
            f"{where}: template_start must run from 0 to {len(graph.ops)} ops "
            f"over {len(graph.template_names)} templates"
        )
    if (np.diff(starts) < 0).any():
        raise GraphError(f"{where}: template_start must ascend")


def _check_range(values: npt.NDArray[np.integer], low: int, high: int | None, what: str) -> None:
    """GraphError unless ``low <= values < high``."""
    wrong = values < low if high is None else (values < low) | (values >= high)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        limits = f"at least {low}" if high is None else f"in {low} to {high - 1}"
        raise GraphError(f"{what}: row {row} is {int(values[row])}, must be {limits}")


def _check_ops(graph: Graph, where: str) -> None:
    ops = graph.ops
    _check_range(ops.kind, 0, len(OpKind), f"{where}: ops.kind")
    for spec in fields(ops):
        column = getattr(ops, spec.name)
        if isinstance(column, np.ndarray) and spec.name != "kind":
            low = -1 if spec.name in _FROM_MINUS_ONE else 0
            _check_range(column, low, None, f"{where}: ops.{stored_name(spec.name)}")
    for name, known in (("phase", PHASES), ("collective", (*COLLECTIVES, *_RECORDED_ONLY, ""))):
        strings: Strings = getattr(ops, name)
        for code in distinct(strings.codes):
            # Behind a colon a name says how it runs.
            if strings.values[code].partition(":")[0] not in known:
                value = strings.values[code]
                row = int(np.flatnonzero(strings.codes == code)[0])
                raise GraphError(f"{where}: ops.{name} row {row}: unknown {value!r}{nearest(value, known)}")
    communicates = is_communication(ops.kind)
    for code in distinct(ops.group.codes[communicates]):
        value = ops.group.values[code]
        if value not in graph.groups:
            row = int(np.flatnonzero(communicates & (ops.group.codes == code))[0])
            raise GraphError(
                f"{where}: op {ops.name[row]!r} (row {row}) uses unknown process group {value!r}"
                f"{nearest(value, graph.groups)}"
            )


def _template_of(graph: Graph, rows: IntArray) -> IntArray:
    return np.searchsorted(graph.template_start, rows, side="right") - 1


def _check_edges(graph: Graph, where: str) -> None:
    edges, num_ops = graph.edges, len(graph.ops)
    _check_range(edges.dst, 0, num_ops, f"{where}: edges.dst")
    _check_range(edges.src, -1, num_ops, f"{where}: edges.src")
    _check_range(edges.ext_back, 0, None, f"{where}: edges.ext_back")
    stored = (edges.kind == EdgeKind.DATA) | (edges.kind == EdgeKind.WAIT)
    if not stored.all():
        row = int(np.flatnonzero(~stored)[0])
        raise GraphError(f"{where}: edges.kind row {row} is {int(edges.kind[row])}; DATA and WAIT are stored")
    if (np.diff(edges.dst) < 0).any():
        raise GraphError(f"{where}: edges must be sorted by dst")
    inside = np.flatnonzero(edges.src >= 0)
    src, dst = edges.src[inside], edges.dst[inside]
    crosses = _template_of(graph, src) != _template_of(graph, dst)
    if crosses.any():
        edge = int(inside[np.flatnonzero(crosses)[0]])
        raise GraphError(
            f"{where}: edge {edge} joins rows {int(edges.src[edge])} and {int(edges.dst[edge])} "
            f"of two templates"
        )
    if (src >= dst).any():
        edge = int(inside[np.flatnonzero(src >= dst)[0]])
        row = int(edges.dst[edge])
        raise GraphError(
            f"{where}: edge {edge}: op {graph.ops.name[row]!r} (row {row}) depends on row "
            f"{int(edges.src[edge])}, which is not issued before it: the graph has a cycle"
        )


def _check_frees(graph: Graph, where: str) -> None:
    frees, num_ops = graph.frees, len(graph.ops)
    _check_range(frees.template, 0, graph.num_templates, f"{where}: frees.template")
    _check_range(frees.after, -1, num_ops, f"{where}: frees.after")
    _check_range(frees.num_bytes, 0, None, f"{where}: frees.num_bytes")
    _check_range(frees.owner, -1, None, f"{where}: frees.owner")
    _check_range(frees.owner_scope, 0, 3, f"{where}: frees.owner_scope")
    for name in ("after", "owner"):
        rows = getattr(frees, name)
        mine = rows >= 0 if name == "after" else (rows >= 0) & (frees.owner_scope == 0)
        if (_template_of(graph, rows[mine]) != frees.template[mine]).any():
            raise GraphError(f"{where}: frees.{name} names an op outside its template")


def _check_program(graph: Graph, program: Program, where: str) -> None:
    what = f"{where}: program {program.name!r}"
    if not len(program.template) == len(program.microbatch) == len(program.chunk):
        raise GraphError(f"{what}: template, microbatch and chunk differ in length")
    _check_range(program.template, 0, graph.num_templates, f"{what}: template")
    _check_range(program.microbatch, -1, None, f"{what}: microbatch")
    _check_range(program.chunk, 0, len(program.layer_offset), f"{what}: chunk")
    recorded = np.maximum(0, graph.ops.recorded_ps).astype(float)
    of_template = np.diff(np.concatenate(([0.0], np.cumsum(recorded)))[graph.template_start])
    seconds = float(of_template[program.template].sum()) / PS_PER_S
    if seconds > _LONGEST_STEP_S:
        raise GraphError(
            f"{what}: recorded durations add up to {seconds:.3g} s,"
            f" more than the {_LONGEST_STEP_S:,} s that a step may take"
        )
    for start, stop, step in program.ranks:
        if step < 1 or start < 0 or stop > graph.world_size or stop <= start:
            raise GraphError(
                f"{what}: rank range {start}:{stop}:{step} does not lie in the world of {graph.world_size}"
            )
