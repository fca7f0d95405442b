"""The SQLite database of Nsight Systems, read without trusting that any table or column is there."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np

from simcore.errors import InputError
from simcore.graph.ops import IntArray
from workloads.imports.files import TraceFile, check_size, opened, readable
from workloads.imports.recording.columns import UNKNOWN, SyncRecord

PROCESS = ~0xFFFFFF  # of a serialized thread id: the process, without the thread
_ROWS = 100_000  # fetched at a time
_SYNCS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
_EVENTS = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
_NO_STREAM = 0xFFFFFFFF
_SYNC_KINDS = ("Unknown", "Event Sync", "Stream Wait Event", "Stream Sync", "Context Sync")


class NsysDatabase:
    """Tables as integer columns.  ``columns`` are the columns of each table."""

    def __init__(self, label: str, connection: sqlite3.Connection) -> None:
        self.label = label
        self._connection = connection
        names = [
            str(row[0])
            for row in connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
        ]
        self.columns: dict[str, frozenset[str]] = {
            name: frozenset(str(row[1]) for row in connection.execute(f"PRAGMA table_info({_quoted(name)})"))
            for name in names
        }

    def has(self, table: str, column: str) -> bool:
        """Whether ``table`` is there and has ``column``."""
        return column in self.columns.get(table, ())

    def integers(self, table: str, columns: Sequence[str], where: str = "") -> IntArray:
        """Rows of ``table``: its row number, then ``columns``; 0 for a column or value that is missing."""
        width = len(columns) + 1
        if table not in self.columns:
            return np.zeros((0, width), dtype=np.int64)
        chosen = ", ".join(
            f"COALESCE(CAST({_quoted(column)} AS INTEGER), 0)" if self.has(table, column) else "0"
            for column in columns
        )
        cursor = self._connection.execute(f"SELECT rowid, {chosen} FROM {_quoted(table)} {where}")
        parts = []
        while rows := cursor.fetchmany(_ROWS):
            parts.append(np.array(rows, dtype=np.int64))
        return np.concatenate(parts) if parts else np.zeros((0, width), dtype=np.int64)

    def texts(self) -> dict[int, str]:
        """The strings of the database by number."""
        if not (self.has("StringIds", "id") and self.has("StringIds", "value")):
            return {}
        return {int(i): str(text) for i, text in self._connection.execute("SELECT id, value FROM StringIds")}

    def enum(self, table: str, default: Sequence[str]) -> dict[int, str]:
        """Labels of an enumeration, ``default`` where the table is missing or empty."""
        if self.has(table, "id") and self.has(table, "label"):
            query = f"SELECT id, label FROM {_quoted(table)}"
            found = {int(i): str(label) for i, label in self._connection.execute(query) if label}
            if found:
                return found
        return dict(enumerate(default))

    def rows(self, table: str, columns: Sequence[str], where: str = "") -> Iterator[tuple[object, ...]]:
        """Rows of ``table`` as they are; None for a column that is missing."""
        if table in self.columns:
            chosen = ", ".join(_quoted(c) if self.has(table, c) else "NULL" for c in columns)
            yield from self._connection.execute(f"SELECT {chosen} FROM {_quoted(table)} {where}")

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
    """The database at ``source``, unpacked first where it is packed or in an archive.

    Errors: InputError when it is no database, truncated, or unpacks to an absurd size.
    """
    with tempfile.TemporaryDirectory() as folder, readable(source.label):
        path = source.path
        with opened(source) as (handle, stored):
            if stored:
                path = Path(folder) / "unpacked.sqlite"
                with path.open("wb") as out:
                    while chunk := handle.read(1 << 20):
                        out.write(chunk)
                        check_size(source.label, out.tell(), stored)
        try:
            uri = path.resolve().as_uri() + "?mode=ro&immutable=1"
            with closing(sqlite3.connect(uri, uri=True)) as connection:
                connection.text_factory = lambda raw: raw.decode(errors="replace")
                yield NsysDatabase(source.label, connection)
        except UnicodeDecodeError:
            raise InputError(f"{source.label}: its schema is no text (damaged database)") from None
        except sqlite3.Error as error:
            raise InputError(f"{source.label}: {error} (no database, or truncated)") from None


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
