"""A run folder, opened: the only way that analysis and reports reach a timeline."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from simcore.errors import InputError
from simcore.files import check_folder
from simcore.graph.arrow import numbers, values_of
from simcore.records import dataclass
from simcore.timeline.digest import rank_digest, timeline_digest
from simcore.timeline.info import RunInfo
from simcore.timeline.schema import COUNTERS, RUN, TIMELINE
from simcore.timeline.stored import StoredTables, check_order

if TYPE_CHECKING:
    import pandas as pd  # what pyarrow imports where a table becomes a frame

_Found = TypeVar("_Found")

_KEPT_BYTES: Final = 24 << 20
#: A run of so many rows or fewer is kept whole, some 60 MiB: it is read by rank four times.
_FEW_ROWS: Final = 1 << 20


@dataclass(frozen=True)
class RankRows:
    """Rows of one representative rank; ``num_ranks`` ranks behave exactly like it, itself included.

    Ranks that ran a program alike have all columns in common but times, ranks and peers, and share what
    has been :meth:`found` of the others.
    """

    rank: int
    num_ranks: int
    table: pa.Table
    _found: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)

    def found(self, what: Hashable, find: Callable[[], _Found]) -> _Found:
        """What columns other than times, ranks and peers say: found once for all who share them."""
        if what not in self._found:
            self._found[what] = find()
        result: _Found = self._found[what]
        return result

    def ints(self, column: str) -> npt.NDArray[np.int64]:
        """An integer column as int64."""
        values: npt.NDArray[np.int64] = values_of(self.table.column(column)).astype(np.int64, copy=False)
        return values

    def strings(self, column: str) -> tuple[npt.NDArray[np.int32], list[str]]:
        """A text column as (codes, values)."""
        return self.found(column, lambda: _strings(self.table, column))

    def are(self, column: str, wanted: tuple[str, ...]) -> npt.NDArray[np.bool_]:
        """By row, whether a text column's value is one of ``wanted``."""

        def find() -> npt.NDArray[np.bool_]:
            codes, names = self.strings(column)
            return np.array([name in wanted for name in names], dtype=np.bool_)[codes]

        return self.found((column, wanted), find)


class Tables(Protocol):
    """Where a timeline's tables come from, which gives the same rows: a run folder's files, or the simulation
    that writes them.  ``path`` is that of the table of rows.
    """

    path: Path

    @property
    def classes(self) -> pa.Table:
        """Of each rank its class and who stands for it."""

    @property
    def num_rows(self) -> int:
        """Rows of the ranks that stand for classes."""

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Lowest and highest rank of each group of rows; a rank's rows may be in several."""

    def read(self, group: int, columns: list[str]) -> pa.Table:
        """Columns of a group of rows."""

    def shared(self, group: int) -> Hashable:
        """The same for groups, each of one rank, whose columns other than times, ranks and peers are one and
        the same.  None where it is not known.
        """

    def counters(self) -> Iterator[pa.Table]:
        """Use of links, some rows at a time."""


class Timeline:
    """The tables of a run.  Open with :meth:`open`; rows are read when they are asked for."""

    def __init__(self, run_dir: Path, info: RunInfo, tables: Tables) -> None:
        self.run_dir = run_dir
        self.info = info
        self._tables = tables
        self._kept: dict[int, tuple[pa.Table, int]] = {}  # by group of rows, with its bytes

    @classmethod
    def open(cls, run_dir: Path | str) -> Timeline:
        """Open a run folder, checked against its manifest.

        InputError, naming the file, when one is missing, changed, damaged or outdated.
        """
        folder = Path(run_dir)
        check_folder(folder, RUN)
        info = RunInfo.read(folder)
        return cls(folder, info, StoredTables(folder, info.workload.world_size))

    @cached_property
    def classes(self) -> pd.DataFrame:
        """Columns rank, rank_class, representative; one row per rank."""
        return self._tables.classes.to_pandas()

    @property
    def path(self) -> Path:
        """The timeline's Parquet file."""
        return self._tables.path

    @property
    def num_rows(self) -> int:
        """Rows in the file: those of the representatives."""
        return self._tables.num_rows

    @property
    def is_large(self) -> bool:
        """Whether its rows are too many to be kept."""
        return self.num_rows > _FEW_ROWS

    @property
    def ranks(self) -> range:
        """All ranks of the job."""
        return range(len(self._tables.classes))

    def rank(self, rank: int, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Rows of one rank in issue order, text as pandas categories.

        A rank that another stands for gets that rank's rows under its own number and with its own peers.
        InputError for a rank outside the job or an unknown column.
        """
        frame: pd.DataFrame = self.rank_rows(rank, columns).table.to_pandas()
        return frame

    def rank_rows(self, rank: int, columns: Sequence[str] | None = None) -> RankRows:
        """As :meth:`rank`, as columnar arrays."""
        representative = self.representative(rank)
        wanted = list(TIMELINE.names if columns is None else columns)
        with_group = [*wanted, "group"] if "peer" in wanted and "group" not in wanted else wanted
        table = self._rows_of(representative, with_group)
        if rank != representative:
            table = self._as_rank(table, representative, rank)
        return RankRows(rank, self._class_sizes[representative], table.select(wanted))

    def representative(self, rank: int) -> int:
        """The rank whose rows stand for ``rank``.  InputError for a rank outside the job."""
        if not 0 <= rank < len(self._tables.classes):
            raise InputError(f"rank {rank} is outside the job's 0..{len(self._tables.classes) - 1}")
        return int(self._representatives[rank])

    def representatives(self, columns: Sequence[str] | None = None) -> Iterator[RankRows]:
        """Rows of each rank that stands for a class, one rank at a time, in file order."""
        wanted = self._columns(columns)
        pending: dict[int, list[pa.Table]] = {}
        missing = set(self._class_sizes)
        shared: Hashable = None
        found: dict[Hashable, Any] = {}
        for group in range(len(self._spans)):
            before, shared = shared, self._tables.shared(group)
            if shared is None or shared != before:
                found = {}
            table = self._read_group(group, wanted)
            for rank, part in _split_by_rank(table):
                if rank not in self._class_sizes or self._last_group.get(rank, -1) < group:
                    raise InputError(
                        f"{self.path}: has rows of rank {rank}, which stands for no class of ranks"
                    )
                pending.setdefault(rank, []).append(part)
            # A rank is complete once no later row group holds it.
            for rank in [r for r in pending if self._last_group[r] <= group]:
                missing.discard(rank)
                table = _concat(pending.pop(rank))
                yield RankRows(rank, self._class_sizes[rank], table, {} if shared is None else found)
        if missing:
            raise InputError(f"{self.path}: no rows of rank {min(missing)}")

    def counters(self, wanted: Callable[[str], bool] | None = None) -> pd.DataFrame:
        """Columns time_ps, resource, value; a step function per resource.

        ``wanted`` picks resources by name; the others never fill the memory.
        """
        frame: pd.DataFrame = self.counter_rows(wanted).to_pandas()
        return frame

    def counter_rows(self, wanted: Callable[[str], bool] | None = None) -> pa.Table:
        """As :meth:`counters`, as columnar arrays; ``resource`` has one dictionary."""
        parts = [pa.Table.from_batches([], schema=COUNTERS)]
        parts += (part if wanted is None else _of_resources(part, wanted) for part in self.counter_parts())
        return pa.concat_tables(parts).unify_dictionaries()

    def counter_parts(self) -> Iterator[pa.Table]:
        """As :meth:`counter_rows`, all resources, some rows at a time."""
        return self._tables.counters()

    def let_go(self) -> None:
        """Keep no rows of a large run, nor memory to read more in: something else is about to need it."""
        if self.is_large:
            self._kept.clear()
        pa.default_memory_pool().release_unused()

    def digest(self) -> str:
        """SHA-256 of all ranks' times (:mod:`simcore.timeline.digest`), whatever the file's layout."""
        columns = ("rank", "op_id", "ready_ps", "start_ps", "end_ps", "alone_ps")
        by_representative = {
            rows.rank: rank_digest(*(rows.ints(column) for column in columns[1:]))
            for rows in self.representatives(columns)
        }
        return timeline_digest(
            (rank, by_representative[int(representative)])
            for rank, representative in enumerate(self._representatives)
        )

    def _as_rank(self, table: pa.Table, representative: int, rank: int) -> pa.Table:
        """Rows of ``representative`` under another number: peers stand as far away in the same group."""
        for name, values in (("rank", None), ("peer", table)):
            if name not in table.column_names:
                continue
            if values is None:
                column = np.full(len(table), rank, dtype=np.int32)
            else:
                column = self._peers(RankRows(representative, 1, table), representative, rank)
            place = table.column_names.index(name)
            table = table.set_column(place, table.schema.field(name), numbers(column))
        return table

    def _peers(self, rows: RankRows, representative: int, rank: int) -> npt.NDArray[np.int32]:
        peers = rows.ints("peer")
        codes, names = rows.strings("group")
        mine = peers.astype(np.int32)
        sending = np.flatnonzero(peers >= 0)
        for code, peer in np.unique(np.stack([codes[sending], peers[sending]], axis=1), axis=0).tolist():
            group = self.info.group(names[code])
            delta = group.position(representative, peer) - group.index_of(representative)
            members = group.ranks_of(rank)
            mine[(codes == code) & (peers == peer)] = members[(group.index_of(rank) + delta) % len(members)]
        return mine

    @cached_property
    def _representatives(self) -> npt.NDArray[np.int64]:
        by_rank = np.empty(len(self._tables.classes), dtype=np.int64)
        by_rank[values_of(self._tables.classes["rank"])] = values_of(self._tables.classes["representative"])
        return by_rank

    @cached_property
    def _class_sizes(self) -> dict[int, int]:
        ranks, sizes = np.unique(self._representatives, return_counts=True)
        return dict(zip(ranks.tolist(), sizes.tolist(), strict=True))

    @cached_property
    def _spans(self) -> list[tuple[int, int]]:
        return self._tables.spans

    @cached_property
    def _last_group(self) -> dict[int, int]:
        last: dict[int, int] = {}
        for group, (low, high) in enumerate(self._spans):
            last.update((rank, group) for rank in range(low, high + 1))
        return last

    def _rows_of(self, rank: int, columns: Sequence[str] | None) -> pa.Table:
        wanted = self._columns(columns)
        parts = []
        for group, (low, high) in enumerate(self._spans):
            if low <= rank <= high:
                parts += [
                    part for found, part in _split_by_rank(self._read_group(group, wanted)) if found == rank
                ]
        if not parts:
            raise InputError(f"{self.path}: no rows of rank {rank}")
        return _concat(parts).select(list(columns) if columns is not None else TIMELINE.names)

    def _columns(self, columns: Sequence[str] | None) -> list[str]:
        if columns is None:
            return list(TIMELINE.names)
        unknown = [name for name in columns if name not in TIMELINE.names]
        if unknown:
            raise InputError(f"timeline has no column {unknown[0]!r}; it has {', '.join(TIMELINE.names)}")
        return list(dict.fromkeys(("rank", *columns)))

    def _read_group(self, group: int, columns: list[str]) -> pa.Table:
        """Columns of a row group.

        What has been read of the latest one is kept, since the ranks in it are asked for one by one, and of
        others what fits :data:`_KEPT_BYTES`, or all of a small run, since several analyses ask for the same.
        """
        kept, _ = self._kept.get(group, (None, 0))
        missing = [name for name in columns if kept is None or name not in kept.column_names]
        if missing:
            table = self._tables.read(group, missing)
            if kept is not None:
                for name in kept.column_names:
                    table = table.append_column(kept.schema.field(name), kept.column(name))
                check_order(table, self.path)
            kept = table
            self._kept[group] = table, table.nbytes
            held = sum(size for _, size in self._kept.values())
            for other in [one for one in reversed(self._kept) if one != group]:
                if held <= _KEPT_BYTES or not self.is_large:
                    break
                held -= self._kept.pop(other)[1]
        assert kept is not None
        return kept.select(columns)


def _strings(table: pa.Table, column: str) -> tuple[npt.NDArray[np.int32], list[str]]:
    """A text column as (codes, values)."""
    chunk = table.column(column).unify_dictionaries().combine_chunks()
    if isinstance(chunk, pa.ChunkedArray):  # an empty column has no chunk to combine
        return np.zeros(0, dtype=np.int32), []
    return values_of(chunk.indices).astype(np.int32, copy=False), chunk.dictionary.to_pylist()


def _of_resources(table: pa.Table, wanted: Callable[[str], bool]) -> pa.Table:
    """Rows of a counters table whose resource's name passes.  Arrow's own filter takes long to import."""
    chunk = table.column("resource").combine_chunks()
    if isinstance(chunk, pa.ChunkedArray):  # an empty column has no chunk to combine
        return table
    passes = np.array([wanted(name) for name in chunk.dictionary.to_pylist()], dtype=np.bool_)
    codes = values_of(chunk.indices)
    rows = np.flatnonzero(passes[codes])
    columns = {
        "time_ps": numbers(values_of(table.column("time_ps"))[rows]),
        "resource": pa.DictionaryArray.from_arrays(numbers(codes[rows]), chunk.dictionary),
        "value": numbers(values_of(table.column("value"))[rows]),
    }
    return pa.Table.from_arrays([columns[name] for name in table.column_names], schema=COUNTERS)


def _split_by_rank(table: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """Consecutive rows of equal rank."""
    rank = values_of(table.column("rank"))
    if len(rank) == 0:
        return
    starts = np.concatenate([[0], np.flatnonzero(np.diff(rank)) + 1, [len(rank)]])
    for start, stop in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        yield int(rank[start]), table.slice(start, stop - start)


def _concat(parts: list[pa.Table]) -> pa.Table:
    return parts[0] if len(parts) == 1 else pa.concat_tables(parts)
