"""Tiny Nsight Systems databases written by hand, times in ns."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

PID = 1 << 48 | 100 << 24  # a serialized process id; threads are added to it

Rows = list[dict[str, object]]


def write(path: Path, **tables: Rows) -> Path:
    """A database of ``tables``: the columns of each are the keys of its rows."""
    with closing(sqlite3.connect(path)) as connection:
        for table, rows in tables.items():
            columns = list(dict.fromkeys(key for row in rows for key in row))
            connection.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
            marks = ", ".join("?" * len(columns))
            connection.executemany(
                f"INSERT INTO {table} VALUES ({marks})", [[row.get(c) for c in columns] for row in rows]
            )
        connection.commit()
    return path


def strings(*texts: str) -> Rows:
    return [{"id": number, "value": text} for number, text in enumerate(texts)]


def kernel(start: int, end: int, corr: int, *, name: int, device=0, stream=7, pid=PID, **more) -> dict:
    return {
        "start": start, "end": end, "deviceId": device, "streamId": stream, "correlationId": corr,
        "globalPid": pid, "demangledName": name, **more,
    }  # fmt: skip


def call(start: int, end: int, corr: int, *, name: int, pid=PID, thread=1) -> dict:
    return {"start": start, "end": end, "globalTid": pid + thread, "nameId": name, "correlationId": corr}
