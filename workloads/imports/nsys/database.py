"""The SQLite database of Nsight Systems, read without trusting that any table or column is there."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import numpy as np

from simcore.errors import InputError
from simcore.graph.ops import IntArray
from simcore.outside import limits, over, quoted
from simcore.units import MIB
from workloads.imports.files import TraceFile, read_whole
from workloads.imports.recording.columns import UNKNOWN, SyncRecord

PROCESS = ~0xFFFFFF  # of a serialized thread id: the process, without the thread
_ROWS = 100_000  # fetched at a time
MAGIC = b"SQLite format 3\x00"
#: Tables that are read, by how their names begin.
_TABLES = ("CUPTI_", "NVTX_", "StringIds", "TARGET_INFO", "ENUM_")
_MOST = {
    sqlite3.SQLITE_LIMIT_LENGTH: 64 * MIB, sqlite3.SQLITE_LIMIT_COLUMN: 500,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0, sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
}  # fmt: skip
_STEPS, _STEPS_BYTE = (
    1_000_000,
    200,
)  # of SQLite's machine: counted at a time, and at most for a byte of the file
_SYNCS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
_EVENTS = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
_NO_STREAM = 0xFFFFFFFF
_SYNC_KINDS = ("Unknown", "Event Sync", "Stream Wait Event", "Stream Sync", "Context Sync")

_TIMES = ("start", "end")  # nothing is recorded of what lacks one


class NsysDatabase:
    """Tables as integer columns.  ``columns`` are the columns of each table.

    Errors: InputError for tables that are views or of an extension, sqlite3.Error for a damaged file.
    """

    def __init__(self, label: str, connection: sqlite3.Connection) -> None:
        self.label = label
        self._connection = connection
        self.columns: dict[str, frozenset[str]] = {}
        query = "SELECT name, rootpage FROM sqlite_master WHERE type IN ('table', 'view')"
        for name, page in connection.execute(query).fetchall():
            if str(name).startswith(_TABLES) and not page:
                raise InputError(
                    f"{label}: {quoted(name)} is a view; only tables that hold their rows are read"
                )
            rows = connection.execute(f"PRAGMA table_info({_quoted(str(name))})")
            self.columns[str(name)] = frozenset(str(row[1]) for row in rows)

    def has(self, table: str, column: str) -> bool:
        """Whether ``table`` is there and has ``column``."""
        return column in self.columns.get(table, ())

    def integers(self, table: str, columns: Sequence[str]) -> IntArray:
        """Rows of ``table``: its row number, then ``columns``; 0 for a column or value that is missing,
        times aside.

        Errors: InputError for a value that is no whole number, and for more rows than the limit of events.
        """
        width = len(columns) + 1
        if table not in self.columns:
            return np.zeros((0, width), dtype=np.int64)
        chosen = ", ".join(
            "0"
            if not self.has(table, column)
            else _quoted(column)
            if column in _TIMES
            else f"COALESCE({_quoted(column)}, 0)"
            for column in columns
        )
        cursor = self._connection.execute(f"SELECT rowid, {chosen} FROM {_quoted(table)} NOT INDEXED")
        parts: list[IntArray] = []
        while rows := cursor.fetchmany(_ROWS):
            found = np.array(rows)
            parts.append(found if found.dtype == np.int64 else self._whole(table, columns, rows))
            if len(parts) * _ROWS > limits().events + _ROWS:
                raise over("events", 0, f"{self.label}: {table}")
        found = np.concatenate(parts) if parts else np.zeros((0, width), dtype=np.int64)
        if (found[1:, 0] <= found[:-1, 0]).any():
            raise InputError(f"{self.label}: {table}: its rows are not in order (damaged database)")
        return found

    def _whole(self, table: str, columns: Sequence[str], rows: list[tuple[Any, ...]]) -> IntArray:
        """Rows in which not every value is an integer: numbers that are whole are."""
        for row in rows:
            for column, value in zip(("rowid", *columns), row, strict=True):
                whole = type(value) is int or (
                    type(value) is float and abs(value) < 1 << 53 and value % 1 == 0
                )
                if not whole:
                    where = f"{self.label}: {table}, row {quoted(row[0])}"
                    raise InputError(f"{where}: {column} is {quoted(value)}, no whole number")
        return np.array(rows, dtype=np.int64)

    def texts(self) -> dict[int, str]:
        """The strings of the database by number."""
        if not (self.has("StringIds", "id") and self.has("StringIds", "value")):
            return {}
        return self._by_number("StringIds", "value")

    def enum(self, table: str, default: Sequence[str]) -> dict[int, str]:
        """Labels of an enumeration, ``default`` where the table is missing or empty."""
        if self.has(table, "id") and self.has(table, "label"):
            found = {number: label for number, label in self._by_number(table, "label").items() if label}
            if found:
                return found
        return dict(enumerate(default))

    def _by_number(self, table: str, column: str) -> dict[int, str]:
        found: dict[int, str] = {}
        for number, text in self.rows(table, ("id", column)):
            if type(number) is not int or not (text is None or type(text) is str):
                where = f"{self.label}: {table}: id {quoted(number)}"
                raise InputError(f"{where}, {column} {quoted(text)}: no number and text")
            found[number] = text or ""
        return found

    def rows(self, table: str, columns: Sequence[str]) -> Iterator[tuple[object, ...]]:
        """Rows of ``table`` as they are; None for a column that is missing."""
        if table in self.columns:
            chosen = ", ".join(_quoted(c) if self.has(table, c) else "NULL" for c in columns)
            yield from self._connection.execute(f"SELECT {chosen} FROM {_quoted(table)}")

    def gpu_name(self, device: int) -> str:
        """The model of a GPU, that of any where the number is unknown; "" where none is named."""
        chosen: object = None
        for number, name in self.rows("TARGET_INFO_GPU", ("id", "name")):
            if chosen is None or number == device:
                chosen = name
        return str(chosen or "")

    def gpu_limits(self, device: int) -> dict[str, int]:
        """What an SM of a GPU holds, under the names that Kineto has for it; empty where not recorded."""
        columns = (
            "id", "smCount", "maxWarpsPerSm", "threadsPerWarp", "maxRegistersPerSm", "maxShmemPerSm",
            "computeMajor",
        )  # fmt: skip
        found: dict[int, IntArray] = {
            int(row[1]): row[2:] for row in self.integers("TARGET_INFO_GPU", columns)
        }
        row = found.get(device, next(iter(found.values()), None))
        if row is None:
            return {}
        sms, warps, threads, registers, shared, major = row.tolist()
        return {
            "numSms": sms, "maxThreadsPerMultiprocessor": warps * threads, "regsPerMultiprocessor": registers,
            "sharedMemPerMultiprocessor": shared, "computeMajor": major,
        }  # fmt: skip

    def epoch_ns(self) -> int:
        """What to add to a time stamp for UTC, ns; 0 where not recorded."""
        columns = ("utcEpochNs", "systemClockNs")
        for utc, clock in self.rows("TARGET_INFO_SESSION_START_TIME", columns):
            if isinstance(utc, int):
                return utc - (clock if isinstance(clock, int) else 0)
        return 0


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def opened_database(source: TraceFile) -> Iterator[NsysDatabase]:
    """The database at ``source``, read-only; one that is packed or in an archive is unpacked in memory.

    Errors: InputError when it is no database, truncated or damaged, or unpacks to an absurd size.
    """
    try:
        with closing(_connected(source)) as connection:
            connection.text_factory = lambda raw: raw.decode(errors="replace")
            yield NsysDatabase(source.label, connection)
    except UnicodeDecodeError:
        raise InputError(f"{source.label}: its schema is no text (damaged database)") from None
    except (
        sqlite3.Error,
        OverflowError,
    ) as error:  # OverflowError: of strings that a damaged file says it has
        reason = "reading it takes more steps than its size allows" if "interrupted" in str(error) else error
        raise InputError(f"{source.label}: {reason} (no database, truncated or damaged)") from None


def _connected(source: TraceFile) -> sqlite3.Connection:
    with source.path.open("rb") as file:
        plain = source.member is None and file.read(len(MAGIC)) == MAGIC
    if not plain:
        data = bytearray(read_whole(source, "unpacked"))
        data[18:20] = b"\1\1"  # no write-ahead log: there is no file beside it
        connection = sqlite3.connect(":memory:")
        connection.deserialize(bytes(data))
        size = len(data)
    else:
        uri = source.path.resolve().as_uri() + "?mode=ro&immutable=1"
        connection = sqlite3.connect(uri, uri=True)
        size = source.path.stat().st_size
    for name, most in _MOST.items():
        connection.setlimit(name, most)
    # Pages of a damaged file may lead to each other without end.
    steps = iter(range(_STEPS_BYTE * size // _STEPS + 10))
    connection.set_progress_handler(lambda: next(steps, None) is None, _STEPS)
    for pragma in ("trusted_schema = 0", "query_only = 1", "cell_size_check = 1"):
        connection.execute(f"PRAGMA {pragma}")
    return connection


def sync_records(database: NsysDatabase, *, by_process: bool) -> dict[int, dict[int, SyncRecord]]:
    """Recorded synchronisations, by process and correlation; events say which record call they mean."""
    events = database.integers(_EVENTS, ["globalPid", "eventId", "eventSyncId", "correlationId", "streamId"])[
        :, 1:
    ]
    exact = {(p, e, s): (c, stream) for p, e, s, c, stream in events.tolist() if s}
    records: dict[tuple[int, int], tuple[IntArray, IntArray]] = {}
    key = events[:, :2]
    order = np.lexsort((events[:, 3], key[:, 1], key[:, 0]))
    events = events[order]
    if len(events):
        changes = np.flatnonzero((np.diff(events[:, :2], axis=0) != 0).any(axis=1)) + 1
        for part in np.split(events, changes):
            records[int(part[0, 0]), int(part[0, 1])] = (part[:, 3], part[:, 4])
    columns = ["globalPid", "syncType", "streamId", "correlationId", "eventId", "eventSyncId"]
    if not database.has(_SYNCS, "syncType"):
        columns[1] = "deprecatedSyncType"
    found: dict[int, dict[int, SyncRecord]] = {}
    for _, pid, kind, stream, correlation, event, number in database.integers(_SYNCS, columns).tolist():
        record, source = exact.get((pid, event, number), (UNKNOWN, UNKNOWN)) if number else (UNKNOWN,) * 2
        if record < 0 and (pid, event) in records and kind in (1, 2):
            issued, streams = records[pid, event]
            at = int(np.searchsorted(issued, correlation)) - 1  # the last record before the wait counts
            if at >= 0:
                record, source = int(issued[at]), int(streams[at])
        found.setdefault(pid if by_process else 0, {})[correlation] = SyncRecord(
            _SYNC_KINDS[kind] if 0 <= kind < len(_SYNC_KINDS) else str(kind),
            correlation,
            UNKNOWN if stream == _NO_STREAM else stream,
            source,
            record,
        )
    return found
