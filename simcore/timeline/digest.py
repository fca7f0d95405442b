"""A digest of a timeline's times: equal digests mean equal to the picosecond.

It covers rank, op_id, ready, start, end and time alone, and nothing about how the table is laid out in
its file.  Ranks are hashed one by one first, so ranks that share rows (one class) cost one hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt


def rank_digest(
    op_id: npt.NDArray[np.integer],
    ready_ps: npt.NDArray[np.integer],
    start_ps: npt.NDArray[np.integer],
    end_ps: npt.NDArray[np.integer],
    alone_ps: npt.NDArray[np.integer],
) -> bytes:
    """SHA-256 over the columns as little-endian int64, rows in op_id order."""
    if len(op_id) and (np.diff(op_id) < 0).any():
        order = np.argsort(op_id, kind="stable")
        op_id, ready_ps, start_ps, end_ps, alone_ps = (
            column[order] for column in (op_id, ready_ps, start_ps, end_ps, alone_ps)
        )
    digest = hashlib.sha256()
    for column in (op_id, ready_ps, start_ps, end_ps, alone_ps):
        digest.update(np.ascontiguousarray(column, dtype="<i8").data)
    return digest.digest()


def timeline_digest(ranks: Iterable[tuple[int, bytes]]) -> str:
    """Hex SHA-256 over (rank, digest of its rows), ranks ascending."""
    digest = hashlib.sha256()
    for rank, rows in sorted(ranks):
        digest.update(rank.to_bytes(8, "little"))
        digest.update(rows)
    return digest.hexdigest()
