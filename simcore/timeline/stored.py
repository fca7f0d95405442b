"""Parquet tables of a run folder, held to their schemas: what is read later needs no more checks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from simcore.errors import InputError, nearest
from simcore.graph.arrow import values_of
from simcore.timeline.schema import (
    COUNTERS,
    COUNTERS_FILE,
    RANK_CLASSES,
    RANK_CLASSES_FILE,
    SCHEMA_VERSION,
    TIMELINE,
    TIMELINE_FILE,
)

_TIMES = ("ready_ps", "start_ps", "end_ps", "alone_ps", "time_ps")
_ORDER = (
    ("ready_ps", "start_ps", "an op starts before it is ready"),
    ("start_ps", "end_ps", "an op ends before it starts"),
)
_AMOUNTS = ("flops", "bytes", "channels", "op_id")


def open_table(path: Path, schema: pa.Schema, version_key: str) -> pq.ParquetFile:
    """A table of ``schema``.  InputError when it is missing, damaged, outdated or has other columns."""
    try:
        file = pq.ParquetFile(path, page_checksum_verification=True)
        found = file.schema_arrow
        types = dict(zip(found.names, found.types, strict=True))
    except FileNotFoundError:
        raise InputError(f"{path} is missing") from None
    except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: names that are no UTF-8
        raise InputError(f"{path} is not a complete Parquet file: {error}") from error
    version = (found.metadata or {}).get(version_key.encode(), b"none").decode(errors="replace")
    if version != SCHEMA_VERSION:
        raise InputError(f"{path}: schema version {version!r}, this program reads {SCHEMA_VERSION!r}")
    for field in schema:
        if field.name not in types:
            raise InputError(f"{path}: column {field.name!r} is missing")
        if types[field.name] != field.type:
            raise InputError(
                f"{path}: column {field.name!r} holds {types[field.name]}, expected {field.type}"
            )
    for name in types:
        if name not in schema.names:
            raise InputError(f"{path}: unknown column {name!r}{nearest(name, schema.names)}")
    return file


def read_group(
    file: pq.ParquetFile, path: Path, group: int, columns: list[str] | None = None, num_ranks: int = 0
) -> pa.Table:
    """Columns of a row group.  InputError for a damaged one, empty cells, and numbers that cannot be.

    ``num_ranks``: of the job, for columns of ranks.
    """
    try:
        table = file.read_row_group(group, columns=columns, use_threads=False)
        for column in table.columns:
            if pa.types.is_dictionary(column.type):
                column.validate(full=True)  # numbers of texts that are not there
    except MemoryError:  # Arrow's is one of its exceptions, too
        raise
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path} is damaged: {error}") from error
    for name in table.column_names:
        column = table.column(name)
        if column.null_count:
            raise InputError(f"{path}: column {name!r} has {column.null_count:,} empty cells")
        least = {"peer": -1}.get(name, 0)
        if name in _TIMES or name in _AMOUNTS:
            if values_of(column).min(initial=0) < 0:
                raise InputError(f"{path}: column {name!r} holds a negative number")
        elif name in ("rank", "peer") and len(column):
            ranks = values_of(column)
            if ranks.min() < least or ranks.max() >= num_ranks:
                raise InputError(f"{path}: column {name!r} names ranks outside of the job's {num_ranks:,}")
    check_order(table, path)
    return table


def check_order(table: pa.Table, path: Path) -> None:
    """InputError where an op does not become ready, start and end in that order, as far as columns tell."""
    for first, then, said in _ORDER:
        if {first, then} <= set(table.column_names) and (
            values_of(table.column(first)) > values_of(table.column(then))
        ).any():
            raise InputError(f"{path}: {said}")


class StoredTables:
    """Tables of a run folder (:class:`simcore.timeline.reader.Tables`), rows by row group.

    InputError, naming the file, when one is missing, damaged or outdated.
    """

    def __init__(self, folder: Path, world_size: int) -> None:
        self.path = folder / TIMELINE_FILE
        self._folder, self._world_size = folder, world_size
        self._file = open_table(self.path, TIMELINE, "simcore.timeline.schema")
        self.classes = rank_classes(folder / RANK_CLASSES_FILE, world_size)

    def shared(self, group: int) -> None:
        """Not known of rows in files."""

    @property
    def num_rows(self) -> int:
        """Rows of the ranks that stand for classes."""
        return int(self._file.metadata.num_rows)

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Lowest and highest rank of each row group, from the file's statistics."""
        column = TIMELINE.names.index("rank")
        spans = []
        for group in range(self._file.num_row_groups):
            about = self._file.metadata.row_group(group)
            if not about.num_rows:
                spans.append((0, -1))
                continue
            found = about.column(column).statistics
            if found is None or not found.has_min_max or not 0 <= found.min <= found.max < self._world_size:
                raise InputError(
                    f"{self.path}: row group {group} does not say which ranks of the job it holds"
                )
            spans.append((int(found.min), int(found.max)))
        return spans

    def read(self, group: int, columns: list[str]) -> pa.Table:
        """Columns of a row group."""
        return read_group(self._file, self.path, group, columns, self._world_size)

    def counters(self) -> Iterator[pa.Table]:
        """Use of the links that carried something, some of its rows at a time."""
        path = self._folder / COUNTERS_FILE
        file = open_table(path, COUNTERS, "simcore.counters.schema")
        for group in range(file.num_row_groups):
            yield read_group(file, path, group)


def rank_classes(path: Path, world_size: int) -> pa.Table:
    """Which rank stands for which.  InputError unless every rank has one that stands for itself."""
    file = open_table(path, RANK_CLASSES, "simcore.rank_classes.schema")
    once = f"{path}: does not name each of the job's {world_size:,} ranks once"
    if file.metadata.num_rows != world_size:
        raise InputError(once)
    groups = [read_group(file, path, group, num_ranks=world_size) for group in range(file.num_row_groups)]
    table = pa.concat_tables(
        [pa.Table.from_batches([], schema=RANK_CLASSES), *groups], promote_options="none"
    )
    ranks, stands = values_of(table.column("rank")), values_of(table.column("representative"))
    if not np.array_equal(np.sort(ranks), np.arange(world_size)):
        raise InputError(once)
    of_rank = np.empty(world_size, dtype=np.int64)
    of_rank[ranks] = stands
    if world_size and (stands.min() < 0 or stands.max() >= world_size or (of_rank[of_rank] != of_rank).any()):
        raise InputError(f"{path}: a rank is stood for by one that does not stand for itself")
    return table
