"""Synchronisations that Nsight Systems recorded: which stream, or the host, waited for what."""

from __future__ import annotations

import numpy as np

from simcore.graph.ops import IntArray
from workloads.imports.nsys_database import Database
from workloads.imports.recording import UNKNOWN, SyncRecord

_SYNCS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
_EVENTS = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
_NO_STREAM = 0xFFFFFFFF
_SYNC_KINDS = ("Unknown", "Event Sync", "Stream Wait Event", "Stream Sync", "Context Sync")


def sync_records(database: Database, *, by_process: bool) -> dict[int, dict[int, SyncRecord]]:
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
