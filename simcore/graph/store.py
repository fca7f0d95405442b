"""A graph as a folder: ``graph.json`` and four Parquet tables (ops, edges, frees, skeleton).

Equal graphs give equal bytes: string dictionaries are sorted and nothing of the clock or the machine
is written.  A folder appears whole or not at all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from simcore.errors import GraphError, InputError, nearest
from simcore.files import MANIFEST, check_folder, whole_folder
from simcore.graph.arrow import values_of
from simcore.graph.graph import Graph, MemoryProfile, Program, Workload
from simcore.graph.groups import ProcessGroup
from simcore.graph.hashing import canonical, records
from simcore.graph.ops import OP_COLUMNS, EdgeTable, FreeTable, IntArray, OpTable, Strings, stored_name
from simcore.graph.size import refuse_too_large_graph
from simcore.graph.structure import check_structure
from simcore.outside import json_document, open_parquet

if TYPE_CHECKING:
    from simcore.graph.header import GroupRecord, ProgramRecord

SCHEMA_VERSION: Final = 1
#: No dimension of a tensor is larger.
_MOST_SIZE: Final = 2**48
GRAPH: Final = "graph"  # what the manifest of the folder says that it holds

Table = Mapping[str, Strings | npt.NDArray[np.integer]]

_OPS = {stored_name(name): kind for name, (kind, _) in OP_COLUMNS.items()}
_EDGES = {"dst": "int", "src": "int", "kind": "int", "ext_stream": "str", "ext_back": "int"}
_FREES = {spec.name: "int" for spec in fields(FreeTable)}
_SKELETON = dict.fromkeys(("program", "template", "microbatch", "chunk"), "int")


def save_graph(
    graph: Graph, folder: str | os.PathLike[str], write_more: Callable[[Path], None] | None = None
) -> None:
    """Write ``graph`` to ``folder``, replacing a graph that is there.

    Written beside it and renamed, so that an interrupted save leaves what was there before.  ``write_more``
    puts further files into the folder.
    InputError when ``folder`` exists and is no graph folder; GraphError when the graph is malformed.
    """
    check_structure(graph, "the graph to save")
    with whole_folder(Path(folder), GRAPH) as fresh:
        _write_files(graph, fresh)
        if write_more is not None:
            write_more(fresh)


def load_graph(folder: str | os.PathLike[str]) -> Graph:
    """Read a graph folder.

    InputError when the folder or a file is missing; GraphError, naming file and reason, when a file is
    truncated, changed since it was written, of another schema version, or holds values that make no graph.
    A folder without a manifest, which other programs may write, is only checked for what it holds.
    """
    from simcore.graph.header import read_header  # its models take as long to make as a graph to generate

    source = Path(folder)
    if not source.is_dir():
        raise InputError(f"{source}: no such graph folder")
    if (source / MANIFEST).exists():
        try:
            check_folder(source, GRAPH)
        except InputError as error:
            raise GraphError(str(error)) from None
    header = read_header(source / "graph.json")
    ops = _read_table(source / "ops.parquet", _OPS)
    edges = _read_table(source / "edges.parquet", _EDGES)
    frees = _read_table(source / "frees.parquet", _FREES)
    skeleton = _read_table(source / "skeleton.parquet", _SKELETON)
    try:
        graph = Graph(
            workload=Workload(**header.workload.model_dump()),
            groups={record.name: _group(record) for record in header.groups},
            programs=_programs(header.programs, skeleton),
            ops=OpTable(**{name: ops[stored_name(name)] for name in OP_COLUMNS}),  # type: ignore[arg-type]
            edges=EdgeTable(**edges),  # type: ignore[arg-type]
            frees=FreeTable(**frees),  # type: ignore[arg-type]
            template_start=np.array(header.template_start, dtype=np.int64),
            template_names=tuple(header.template_names),
        )
    except InputError as error:
        raise GraphError(f"{source}: {error}") from None
    check_structure(graph, str(source))
    _check_shapes(graph, str(source))
    refuse_too_large_graph(graph, str(source))
    return graph


def _check_shapes(graph: Graph, where: str) -> None:
    """GraphError for shapes that are no lists of sizes."""
    for name in ("in_shapes", "out_shapes"):
        column: Strings = getattr(graph.ops, name)
        for code, text in enumerate(column.values):
            try:
                shapes = json_document(text, where) if text else []
                fits = all(type(size) is int and 0 <= size < _MOST_SIZE for shape in shapes for size in shape)
            except (InputError, TypeError):
                fits = False
            if not fits and (rows := np.flatnonzero(column.codes == code)).size:
                row = int(rows[0])
                template = graph.template_names[int(np.searchsorted(graph.template_start, row, "right")) - 1]
                raise GraphError(
                    f"{where}: ops.{name} of op {graph.ops.name[row]!r} (row {row}, template {template!r}):"
                    f" {text[:80]!r} is no JSON list of lists of sizes"
                )


def _write_files(graph: Graph, folder: Path) -> None:
    header = {
        "schema_version": SCHEMA_VERSION,
        "workload": asdict(graph.workload),
        **records(graph),
        "template_start": graph.template_start.tolist(),
    }
    text = json.dumps(header, indent=1, sort_keys=True, allow_nan=False) + "\n"
    (folder / "graph.json").write_text(text, encoding="utf-8")
    _write_table(folder / "ops.parquet", {stored_name(name): getattr(graph.ops, name) for name in OP_COLUMNS})
    _write_table(folder / "edges.parquet", {name: getattr(graph.edges, name) for name in _EDGES})
    _write_table(folder / "frees.parquet", {name: getattr(graph.frees, name) for name in _FREES})
    lengths = [len(program.template) for program in graph.programs]
    skeleton: dict[str, Strings | npt.NDArray[np.integer]] = {
        "program": np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)
    }
    for name in ("template", "microbatch", "chunk"):
        columns = [getattr(program, name) for program in graph.programs]
        joined = np.concatenate(columns) if columns else np.zeros(0, dtype=np.int32)
        skeleton[name] = joined.astype(np.int64)
    _write_table(folder / "skeleton.parquet", skeleton)


def _write_table(path: Path, columns: Table) -> None:
    arrays: dict[str, pa.Array] = {}
    for name, column in columns.items():
        if isinstance(column, Strings):
            same = canonical(column)
            values = pa.array(same.values, type=pa.string())
            arrays[name] = pa.DictionaryArray.from_arrays(pa.array(same.codes), values)
        else:
            arrays[name] = pa.array(np.asarray(column, dtype=np.int64))
    text = [name for name, column in columns.items() if isinstance(column, Strings)]
    table = pa.table(arrays).replace_schema_metadata({"simcore.graph.schema": str(SCHEMA_VERSION)})
    pq.write_table(table, path, compression="zstd", compression_level=9, use_dictionary=text or False)


def _read_table(path: Path, schema: Mapping[str, str]) -> dict[str, Strings | IntArray]:
    if not path.exists():
        raise InputError(f"{path}: missing; the graph folder is incomplete")
    try:
        with open_parquet(path, str(path)) as file:
            table = file.read(use_threads=False)
        names = table.column_names  # decoded only now: a damaged name fails here
    except InputError as error:
        raise GraphError(str(error)) from None
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise GraphError(f"{path}: not a readable Parquet file ({reason})") from None
    version = (table.schema.metadata or {}).get(b"simcore.graph.schema", b"none").decode(errors="replace")
    if version != str(SCHEMA_VERSION):
        raise GraphError(f"{path}: schema version {version}, this program reads {SCHEMA_VERSION}")
    for name in names:
        if name not in schema:
            raise GraphError(f"{path}: unknown column {name!r}{nearest(name, schema)}")
    columns: dict[str, Strings | IntArray] = {}
    for name, kind in schema.items():
        if name not in names:
            raise GraphError(f"{path}: column {name!r} is missing")
        chunk = table.column(name).combine_chunks()
        if chunk.null_count:
            raise GraphError(f"{path}: column {name!r} has {chunk.null_count} empty cell(s)")
        columns[name] = _strings(path, name, chunk) if kind == "str" else _int_column(path, name, chunk)
    return columns


def _strings(path: Path, name: str, column: pa.Array) -> Strings:
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = column.dictionary_encode()
    if not pa.types.is_dictionary(column.type) or not pa.types.is_string(column.type.value_type):
        raise GraphError(f"{path}: column {name!r} has type {column.type}, expected strings")
    try:
        column.validate(full=True)
    except pa.ArrowException as error:
        raise GraphError(f"{path}: column {name!r}: {error}") from None
    codes = values_of(column.indices).astype(np.int32)
    return Strings(codes, tuple(column.dictionary.to_pylist()))


def _int_column(path: Path, name: str, column: pa.Array) -> IntArray:
    if pa.types.is_floating(column.type):
        values = values_of(column)
        bad = np.flatnonzero(~np.isfinite(values))
        what = f"{values[bad[0]]} in row {bad[0]}" if len(bad) else f"type {column.type}"
        raise GraphError(f"{path}: column {name!r} holds {what}, expected whole numbers")
    if not pa.types.is_integer(column.type):
        raise GraphError(f"{path}: column {name!r} has type {column.type}, expected whole numbers")
    return values_of(column).astype(np.int64)


def _group(record: GroupRecord) -> ProcessGroup:
    return ProcessGroup(
        name=record.name,
        dims=tuple((size, stride) for size, stride in record.dims),
        base_dims=tuple((size, stride) for size, stride in record.base_dims),
        offset=record.offset,
        explicit=tuple(tuple(members) for members in record.explicit),
    )


def _programs(records: Sequence[ProgramRecord], skeleton: Table) -> tuple[Program, ...]:
    owner = np.asarray(skeleton["program"])
    if len(owner) and (owner.min() < 0 or owner.max() >= len(records) or (np.diff(owner) < 0).any()):
        raise GraphError(f"skeleton.parquet: programs must be 0 to {len(records) - 1}, ascending")
    bounds = np.searchsorted(owner, np.arange(len(records) + 1))
    programs = []
    for index, record in enumerate(records):
        rows = slice(int(bounds[index]), int(bounds[index + 1]))
        columns = {
            name: np.asarray(skeleton[name])[rows].astype(np.int32)
            for name in ("template", "microbatch", "chunk")
        }
        programs.append(
            Program(
                name=record.name,
                ranks=tuple((start, stop, step) for start, stop, step in record.ranks),
                stage=record.stage,
                layer_offset=tuple(record.layer_offset),
                memory=MemoryProfile(**record.memory.model_dump()),
                **columns,
            )
        )
    return tuple(programs)
