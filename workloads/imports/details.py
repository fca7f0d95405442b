"""What a Kineto trace says of single ops beyond their times: the framework's op and shapes, collectives."""

from __future__ import annotations

import re

import numpy as np

from simcore.graph.ops import IntArray, Strings
from workloads.imports.collective_kinds import collective_bytes, collective_kind
from workloads.imports.innermost import innermost
from workloads.imports.rank_ops import RankOps
from workloads.imports.recorded import RecordedCollectives, RecordedShapes

_RANK_LIST = re.compile(r"\[\s*\d+(?:\s*,\s*\d+)*\s*\]")


def recorded_shapes(ops: RankOps) -> RecordedShapes | None:
    """The innermost framework op with shapes around the launch of each op; None when the trace has none."""
    calls, around = ops.trace.calls, ops.trace.framework
    if not len(around) or not (ops.call >= 0).any():
        return None
    of_call = np.full(len(calls), -1, dtype=np.int64)
    launching = np.zeros(len(calls), dtype=np.bool_)
    launching[ops.call[ops.call >= 0]] = True
    for thread in np.unique(around.thread).tolist():
        inside = np.flatnonzero(launching & (calls.thread == thread))
        found = np.flatnonzero(around.thread == thread)
        found = found[np.lexsort((-around.end_ps[found], around.start_ps[found]))]
        innermost(
            calls.start_ps[inside].tolist(), inside.tolist(), around.start_ps[found].tolist(),
            around.end_ps[found].tolist(), found.tolist(), of_call,
        )  # fmt: skip
    names = ops.trace.names

    def texts(codes: IntArray) -> Strings:
        return Strings(codes.astype(np.int32), names)

    return RecordedShapes(
        np.where(ops.call >= 0, of_call[ops.call], -1),
        texts(around.name),
        texts(around.shapes),
        texts(around.types),
        texts(around.outputs) if len(around.outputs) else None,
    )


def recorded_collectives(ops: RankOps) -> RecordedCollectives:
    """What the trace says of each communication kernel."""
    trace, count = ops.trace, len(ops)
    kinds, dtypes = [""] * count, [""] * count
    num_bytes = np.zeros(count, dtype=np.int64)
    members: list[tuple[int, ...]] = [()] * count
    for op in np.flatnonzero(ops.is_comm).tolist():
        number = int(trace.gpu.meta[ops.row[op]])
        meta = trace.meta[number] if number >= 0 else None
        kinds[op] = collective_kind(trace.names[int(trace.gpu.name[ops.row[op]])], meta)
        num_bytes[op] = collective_bytes(kinds[op], meta)
        if meta is not None:
            dtypes[op] = meta.dtype
            if _RANK_LIST.fullmatch(meta.group_ranks):
                members[op] = tuple(int(rank) for rank in re.findall(r"\d+", meta.group_ranks))
            elif meta.group_size == trace.world_size > 0:
                members[op] = tuple(range(trace.world_size))
    return RecordedCollectives(Strings.encode(kinds), num_bytes, Strings.encode(dtypes), tuple(members))
