"""What a recording says of single ops, for comparison with a replay: times, steps, shapes, collectives."""

from __future__ import annotations

import numpy as np

from simcore.graph.ops import IntArray, Strings
from workloads.imports.recorded import (
    ImportedRank,
    RecordedCollectives,
    RecordedLaunches,
    RecordedOps,
    RecordedShapes,
    Step,
)
from workloads.imports.recording.intervals import innermost
from workloads.imports.recording.rank_ops import RankOps


def imported_rank_of(number: int, ops: RankOps, flat_rows: IntArray) -> ImportedRank:
    """With the rank's steps: an op belongs to the step in which it was launched."""
    when = ops.start_ps
    known = np.ones(len(ops), dtype=np.bool_)
    if (ops.call >= 0).any():
        when = ops.trace.calls.start_ps[np.maximum(ops.call, 0)]
        known = ops.call >= 0
    steps, members = [], []
    for step in ops.trace.steps:
        inside = np.flatnonzero(known & (when >= step.start_ps) & (when < step.end_ps))
        if len(inside):
            steps.append(step)
            members.append(inside)
    if not steps:
        steps = [Step(-1, int(ops.start_ps[0]), int(ops.end_ps.max()))]
        members = [np.arange(len(ops))]
    return ImportedRank(
        number, _recorded(ops), flat_rows, tuple(steps), tuple(members), ops.trace.gpu_name, ops.trace.num_sms
    )


def _recorded(ops: RankOps) -> RecordedOps:
    gpu = ops.trace.gpu
    launched = len(gpu.blocks) > 0
    nothing = np.zeros(len(ops), dtype=np.int64)
    return RecordedOps(
        start_ps=ops.start_ps,
        end_ps=ops.end_ps,
        name=Strings(gpu.name[ops.row].astype(np.int32), ops.trace.names),
        stream=Strings(ops.lane.astype(np.int32), ops.lane_names),
        is_comm=ops.is_comm,
        is_kernel=gpu.kind[ops.row] == 0,
        blocks=gpu.blocks[ops.row] if launched else nothing,
        blocks_per_sm=(gpu.blocks_per_sm[ops.row] if launched else nothing).astype(np.float64),
        launches=RecordedLaunches(gpu.threads[ops.row], gpu.registers[ops.row], gpu.shared_bytes[ops.row])
        if len(gpu.threads)
        else None,
        shapes=_shapes(ops),
        collectives=_collectives(ops),
        traffic=gpu.moved[:, ops.row] if gpu.moved is not None else None,
    )


def _shapes(ops: RankOps) -> RecordedShapes | None:
    """The innermost framework op with shapes around the launch of each op; None when the trace has none."""
    calls, around = ops.trace.calls, ops.trace.framework
    if not len(around) or not (ops.call >= 0).any():
        return None
    of_call = np.full(len(calls), -1, dtype=np.int64)
    launching = ops.launching
    of_call[launching] = innermost(
        calls.start_ps[launching], calls.thread[launching], around.start_ps, around.end_ps, around.thread
    )
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


def _collectives(ops: RankOps) -> RecordedCollectives:
    """What the trace says of each communication kernel."""
    count, world, gpu = len(ops), ops.trace.world_size, ops.trace.gpu
    kinds, dtypes, sizes, members = (
        [""],
        [""],
        [0],
        list[tuple[int, ...]]([()]),
    )  # of no collective, then of each
    number = np.zeros(count, dtype=np.int64)
    comm = np.flatnonzero(ops.is_comm)
    if len(comm):
        told = np.stack([gpu.name[ops.row[comm]], gpu.meta[ops.row[comm]]])
        _, first, alike = np.unique(told, axis=1, return_index=True, return_inverse=True)
        number[comm] = 1 + alike.reshape(-1)
        for op in comm[first].tolist():
            kind, meta = ops.collective(op), ops.meta(op)
            kinds.append(kind)
            dtypes.append(meta.dtype if meta is not None else "")
            sizes.append(meta.num_bytes(kind) if meta is not None else 0)
            members.append(meta.members if meta is not None else ())
            if meta is not None and not meta.members and meta.group_size == world > 0:
                members[-1] = tuple(range(world))

    def texts(values: list[str]) -> Strings:
        known = Strings.encode(values)
        return Strings(known.codes[number], known.values)

    return RecordedCollectives(
        texts(kinds), np.array(sizes, dtype=np.int64)[number], texts(dtypes),
        tuple(map(members.__getitem__, number.tolist())),
    )  # fmt: skip
