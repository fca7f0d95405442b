"""Logs of intervals as execution graphs: ops with a start and an end, their order, and where ranks meet.

For formats that record no launches: what a stage, a worker or a thunk did from when to when.  An op starts
when its stream is free and what it waits for has ended; what the log shows beyond that is a gap before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field

import numpy as np

from simcore.graph import Graph, GraphBuilder, OpKind, ProcessGroup
from simcore.graph.ops import IntArray, Strings
from simcore.graph.template_builder import OpHandle, TemplateBuilder
from simcore.records import dataclass
from workloads.imports.recorded import ImportedRank, RecordedOps, Step


@dataclass(frozen=True)
class RecordedCall:
    """How an op meets other ranks: the n-th call of a group's members, or of a sender and its receiver.

    ``transfer_ps`` counts from the last arrival and is the same for all who meet.  ``peer_delta`` is that of
    a SEND or RECV; ``num_bytes`` 0 where not recorded.
    """

    group: str
    transfer_ps: int
    kind: OpKind = OpKind.COLLECTIVE
    collective: str = ""
    peer_delta: int = 0
    num_bytes: int = 0


@dataclass
class TimedOp:
    """One interval of a rank.  ``waits`` are positions of earlier ops of the same rank.

    ``call`` None: the op lasts ``duration_ps``, or what was recorded.  Ops that are not ``recorded`` order
    others (the begin of a step) and stand in no comparison.  ``gap_ps`` is how much later the op starts than
    its stream and its waits explain; None: as the times of all say, 0: as soon as it can.  ``is_kernel``
    False: it counts as neither compute nor communication.  ``seen_after``: the position of the op from whose
    end on the log counts this one, where it is under way before (a receive that was posted).
    """

    name: str
    stream: str
    start_ps: int
    end_ps: int
    step: int
    waits: list[int] = field(default_factory=list)
    call: RecordedCall | None = None
    is_comm: bool = False
    is_kernel: bool = True
    recorded: bool = True
    duration_ps: int | None = None
    gap_ps: int | None = None
    phase: str = ""
    seen_after: int | None = None


@dataclass(frozen=True)
class TimedRank:
    """Where a rank's ops stand in its program: flat op of each, and of the gap before it (-1: none).

    ``contradicted`` counts waits that the log shows to have been none: the source ended after the target
    started, by more than the tolerance.
    """

    op: IntArray
    gap: IntArray
    gap_ps: IntArray
    contradicted: int


def build_timed_graph(
    name: str,
    numbers: Sequence[int],
    ranks: Sequence[Sequence[TimedOp]],
    groups: Iterable[ProcessGroup],
    *,
    typical: bool = False,
    tolerance_ps: int = 0,
) -> tuple[Graph, list[TimedRank]]:
    """The graph of a log, rank ``i`` of it being ``numbers[i]``, and where each op stands.

    ``typical``: the rank's median gap before every op, instead of its own.  Waits that the log contradicts by
    more than ``tolerance_ps`` are left out.
    """
    build = GraphBuilder(
        len(ranks), name=name, framework="recorded", options={"recorded_ranks": list(numbers)}
    )
    for group in groups:
        build.group(group.name, group.dims, base_dims=group.base_dims, explicit=group.explicit)
    placed = []
    for index, ops in enumerate(ranks):
        template = build.template(f"rank {numbers[index]}")
        contradicted = _drop_contradicted(ops, tolerance_ps)
        gaps = gaps_before(ops)
        own = [at for at, op in enumerate(ops) if op.gap_ps is None]
        if typical and own:
            gaps[own] = int(np.median(gaps[own]))
        placed.append(_write_rank(template, ops, gaps, contradicted))
        build.program([index], [(template, -1, 0)], name=f"recorded rank {numbers[index]}")
    return build.build(), placed


def _drop_contradicted(ops: Sequence[TimedOp], tolerance_ps: int) -> int:
    dropped = 0
    for op in ops:
        kept = [source for source in op.waits if ops[source].end_ps <= op.start_ps + tolerance_ps]
        dropped += len(op.waits) - len(kept)
        op.waits = kept
    return dropped


def gaps_before(ops: Sequence[TimedOp]) -> IntArray:
    """How much later than its stream and its waits explain each op started, ps."""
    gaps = np.zeros(len(ops), dtype=np.int64)
    last: dict[str, int] = {}
    for at, op in enumerate(ops):
        before = [ops[source].end_ps for source in op.waits]
        if op.stream in last:
            before.append(ops[last[op.stream]].end_ps)
        late = op.start_ps - max(before, default=0) if op.gap_ps is None else op.gap_ps
        gaps[at] = max(0, late)
        last[op.stream] = at
    return gaps


def _write_rank(
    template: TemplateBuilder, ops: Sequence[TimedOp], gaps: IntArray, contradicted: int
) -> TimedRank:
    rows = np.full(len(ops), -1, dtype=np.int64)
    gap_rows = rows.copy()
    handles: list[OpHandle] = []
    for at, (op, gap) in enumerate(zip(ops, gaps.tolist(), strict=True)):
        waits = tuple(handles[source] for source in op.waits)
        if gap:
            gap_rows[at] = len(template)
            template.event_wait("gap before the next op", gap, stream=op.stream, waits=waits)
            waits = ()
        rows[at] = len(template)
        handles.append(_write_op(template, op, waits))
    return TimedRank(rows, gap_rows, gaps, contradicted)


def _write_op(template: TemplateBuilder, op: TimedOp, waits: tuple[OpHandle, ...]) -> OpHandle:
    call = op.call
    if call is None:
        return template.compute(
            op.name, stream=op.stream, waits=waits, op_class="other", phase=op.phase,
            recorded_ps=op.end_ps - op.start_ps if op.duration_ps is None else op.duration_ps,
        )  # fmt: skip
    if call.kind is OpKind.COLLECTIVE:
        return template.collective(
            call.collective, call.group, call.num_bytes, stream=op.stream, waits=waits, name=op.name,
            recorded_ps=call.transfer_ps, phase=op.phase,
        )  # fmt: skip
    write = template.send if call.kind is OpKind.SEND else template.recv
    return write(
        call.group, call.peer_delta, call.num_bytes, stream=op.stream, waits=waits, name=op.name,
        recorded_ps=call.transfer_ps, phase=op.phase,
    )  # fmt: skip


def imported_rank(number: int, ops: Sequence[TimedOp], placed: TimedRank) -> ImportedRank:
    """What the log says of a rank, for comparison with a replay: its recorded ops by start, and its steps."""
    at = np.array([i for i, op in enumerate(ops) if op.recorded], dtype=np.int64)
    start = np.array([ops[i].start_ps for i in at.tolist()], dtype=np.int64)
    order = np.argsort(start, kind="stable")
    at, start = at[order], start[order]
    kept = [ops[i] for i in at.tolist()]
    end = np.array([op.end_ps for op in kept], dtype=np.int64)
    recorded = RecordedOps(
        start_ps=start,
        end_ps=end,
        name=Strings.encode([op.name for op in kept]),
        stream=Strings.encode([op.stream for op in kept]),
        is_comm=np.array([op.is_comm for op in kept], dtype=np.bool_),
        is_kernel=np.array([op.is_kernel for op in kept], dtype=np.bool_),
        blocks=np.zeros(len(kept), dtype=np.int64),
        blocks_per_sm=np.zeros(len(kept)),
    )
    step_of = np.array([op.step for op in kept], dtype=np.int64)
    members = tuple(np.flatnonzero(step_of == step) for step in dict.fromkeys(step_of.tolist()))
    steps = tuple(
        Step(int(step_of[inside[0]]), int(start[inside].min()), int(end[inside].max())) for inside in members
    )
    after = [ops[i].seen_after for i in at.tolist()]
    seen = np.array([-1 if source is None else placed.op[source] for source in after], dtype=np.int64)
    return ImportedRank(
        number, recorded, placed.op[at], steps, members, seen_after=seen if (seen >= 0).any() else None
    )
