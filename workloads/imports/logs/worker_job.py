"""A log of workers as an execution graph: who waited for whom in a step of data and pipeline parallelism.

What a worker does one after the other is its main stream: computes, and what follows the last backward, in
recorded order.  Sends, receives and data-parallel communication have streams of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simcore.errors import InputError
from simcore.graph.ops import IntArray, Strings
from simcore.records import dataclass
from simcore.units import s_from_ps
from workloads.imports.files import TraceFile, read_each
from workloads.imports.job import ImportedJob, ImportReport, RankReport
from workloads.imports.logs.worker_coupling import couple_workers, matched_computes, worker_groups
from workloads.imports.logs.worker_log import (
    BACKWARD,
    COMMUNICATION_TYPES,
    FORWARD,
    GRADS_REDUCE_SCATTER,
    KNOWN_TYPES,
    P2P_TYPES,
    PARAMS_ALL_GATHER,
    WorkerLog,
    read_worker_log,
)
from workloads.imports.logs.worker_meetings import meeting_groups, with_meetings
from workloads.imports.timed_ops import RecordedCall, TimedOp, TimedRank, build_timed_graph, imported_rank

#: Time stamps of one worker are rounded to some us: an op may seem to start before what it follows has ended.
TOLERANCE_PS = 100_000_000
#: Clocks of workers, and data edges that a log contradicts by more than this, are not believed.
_CONTRADICTION_PS = 10_000_000_000


@dataclass(frozen=True)
class WorkerOps:
    """The workers' ops in the graph, all workers one after the other, for what-if questions.

    ``worker``, ``step`` (its index), ``optype`` label each op; ``flat`` is its flat op in its worker's
    program and ``gap`` that of the delay before it (-1: none).
    """

    log: WorkerLog
    worker: IntArray
    step: IntArray
    optype: Strings
    flat: IntArray
    gap: IntArray


def import_worker_logs(sources: Sequence[TraceFile], skip_bad: bool, gaps: str) -> ImportedJob:
    """Import one log.  ``gaps``: delays before ops that no other op explains as each was, or the typical one.

    Errors: InputError for a bad file or several logs (each is a whole job).
    """
    logs, skipped = read_each(sources, read_worker_log, skip_bad=skip_bad)
    if len(logs) > 1:
        raise InputError(
            f"{logs[0].label} and {logs[1].label} are each a log of a whole job; replay them one by one"
        )
    return import_worker_log(logs[0], tuple(skipped), typical=gaps == "typical")


def import_worker_log(log: WorkerLog, skipped: tuple[str, ...] = (), *, typical: bool = False) -> ImportedJob:
    """The job of one log: every op coupled with its peers, steps one after the other."""
    rows = [np.flatnonzero(log.worker == worker) for worker in range(len(log.numbers))]
    refused: list[str] = []
    matched = matched_computes(log)
    calls = couple_workers(log, matched, refused)
    ranks, row_of = [], []
    origins = _step_origins(log)
    overlapped = _overlaps(log)
    for own in rows:
        ops, of_row = _worker_ops(log, own, calls, matched, origins, overlapped)
        ranks.append(ops)
        row_of.append(of_row)
    ranks, meetings = with_meetings(log, ranks)
    graph, placed = build_timed_graph(
        "worker log",
        log.numbers,
        ranks,
        [*worker_groups(log), *meeting_groups(log)],
        typical=typical,
        tolerance_ps=_CONTRADICTION_PS,
    )
    imported = tuple(
        imported_rank(number, ops, place)
        for number, ops, place in zip(log.numbers, ranks, placed, strict=True)
    )
    flat = np.full(len(log.step), -1, dtype=np.int64)
    gap = flat.copy()
    for of_row, ops, place in zip(row_of, ranks, placed, strict=True):
        logged = [op.recorded for op in ops]
        flat[of_row], gap[of_row] = place.op[logged], place.gap[logged]
    origin = WorkerOps(log, log.worker, np.searchsorted(log.steps, log.step), log.optype, flat, gap)
    report = _report(log, ranks, placed, len(calls), meetings, refused, skipped)
    return ImportedJob(graph, imported, report, origin)


def _step_origins(log: WorkerLog) -> IntArray:
    """Where each step begins in the replay: when the one before has ended on all workers."""
    index = np.searchsorted(log.steps, log.step)
    span = np.zeros(len(log.steps), dtype=np.int64)
    np.maximum.at(span, index, log.end_ps)
    return np.concatenate([[0], np.cumsum(span)[:-1]])


def _overlaps(log: WorkerLog) -> bool:
    """Whether gradients are reduced while backwards still run (then in a stream of their own)."""
    names = log.optype
    reduces = np.flatnonzero(names.equals(GRADS_REDUCE_SCATTER))
    if not len(reduces):
        return False
    computes = names.equals(BACKWARD)
    key = np.searchsorted(log.steps, log.step) * len(log.numbers) + log.worker
    last = np.full(int(key.max()) + 1, np.iinfo(np.int64).min)
    np.maximum.at(last, key[computes], log.end_ps[computes])
    return bool((log.start_ps[reduces] < last[key[reduces]] - TOLERANCE_PS).any())


def _worker_ops(
    log: WorkerLog,
    own: IntArray,
    calls: dict[int, RecordedCall],
    matched: dict[int, int],
    origins: IntArray,
    overlapped: bool,
) -> tuple[list[TimedOp], list[int]]:
    """A worker's ops in issue order, and the row of the log that each is, begins of steps aside."""
    ops: list[TimedOp] = []
    of_row: list[int] = []
    steps = np.searchsorted(log.steps, log.step[own])
    for index, number in enumerate(log.steps):
        rows = own[steps == index].tolist()
        begin = len(ops)
        origin = int(origins[index])
        last_of_stream = {op.stream: at for at, op in enumerate(ops)}
        ops.append(
            TimedOp(
                "begin of a step", "steps", origin, origin, number, waits=sorted(last_of_stream.values()),
                call=RecordedCall("steps", 0, collective="barrier"), recorded=False, gap_ps=0,
            )
        )  # fmt: skip
        place = {row: begin + 1 + at for at, row in enumerate(rows)}
        waits = _waits(log, rows, matched, overlapped)
        streams: set[str] = set()
        for row in rows:
            optype = log.optype[row]
            stream = _stream(optype, overlapped)
            sources = [place[source] for source in waits.get(row, ()) if place[source] < place[row]]
            if stream not in streams:
                sources.append(begin)
                streams.add(stream)
            ops.append(
                TimedOp(
                    optype, stream, origin + int(log.start_ps[row]), origin + int(log.end_ps[row]), number,
                    waits=sources, call=calls.get(row), is_comm=optype in COMMUNICATION_TYPES,
                    phase={FORWARD: "fwd", BACKWARD: "bwd"}.get(optype, "optimizer"),
                )
            )  # fmt: skip
            of_row.append(row)
    return ops, of_row


def _stream(optype: str, overlapped: bool) -> str:
    if optype in P2P_TYPES:
        return optype
    if optype == PARAMS_ALL_GATHER or (overlapped and optype == GRADS_REDUCE_SCATTER):
        return "dp"
    return "main"


def _waits(
    log: WorkerLog, rows: list[int], matched: dict[int, int], overlapped: bool
) -> dict[int, list[int]]:
    """By row of one worker and step: the rows that it waits for beside its own stream."""
    waits: dict[int, list[int]] = {row: [] for row in rows}
    main = [row for row in rows if _stream(log.optype[row], overlapped) == "main"]
    computes = [row for row in main if log.optype[row] in (FORWARD, BACKWARD)]
    ends = np.maximum.accumulate(log.end_ps[main]) if main else np.zeros(0, dtype=np.int64)

    def issued_after(row: int) -> list[int]:
        """The last op of the main stream that had ended when ``row`` started: the program's order."""
        at = int(np.searchsorted(ends, log.start_ps[row] + TOLERANCE_PS, side="right")) - 1
        return [main[at]] if at >= 0 and main[at] < row else []

    for row in rows:
        optype = log.optype[row]
        if optype in P2P_TYPES:
            compute, sends = matched.get(row), P2P_TYPES[optype][0]
            if sends and compute is not None:
                waits[row].append(compute)
                continue
            waits[row] += issued_after(row)
            if compute is not None and compute > row:
                waits[compute].append(row)
        elif optype == PARAMS_ALL_GATHER:
            first = _of_chunk(log, computes, FORWARD, int(log.chunk[row]))
            if first:
                waits[first[0]].append(row)
        elif optype == GRADS_REDUCE_SCATTER and overlapped:
            waits[row] += _of_chunk(log, computes, BACKWARD, int(log.chunk[row]))[-1:]
            after = [
                later
                for later in main
                if later > (computes[-1] if computes else -1)
                and log.optype[later] != "gc"
                and log.start_ps[later] >= log.end_ps[row] - TOLERANCE_PS
            ]
            if after:
                waits[after[0]].append(row)
    return waits


def _of_chunk(log: WorkerLog, computes: list[int], optype: str, chunk: int) -> list[int]:
    """A worker's computes of a kind on a model chunk; of all chunks where the log does not say which."""
    every = [row for row in computes if log.optype[row] == optype]
    return [row for row in every if log.chunk[row] == chunk] or every


def _report(
    log: WorkerLog, ranks: list[list[TimedOp]], placed: list[TimedRank], coupled: int, meetings: int,
    refused: list[str], skipped: tuple[str, ...],
) -> ImportReport:  # fmt: skip
    unknown = [name for name in log.optype.values if name not in KNOWN_TYPES]
    inferred = ["waits follow from the kinds of ops: a log does not record them; steps follow one another"]
    contradicted = sum(place.contradicted for place in placed)
    if contradicted:
        inferred.append(f"{contradicted} waits that the log contradicts by more than 10 ms are left out")
    if meetings:
        how = "gaps before an op end on all of them when the last is ready"
        inferred.append(f"{meetings} times a group of workers meets unlogged: {how}")
    if unknown:
        inferred.append(
            f"unknown types of ops stand in their worker's order, uncoupled: {', '.join(unknown)}"
        )
    reports = tuple(
        RankReport(
            rank=number, file=log.label, gpu_ops=sum(op.recorded for op in ops),
            communication_kernels=sum(op.is_comm for op in ops),
            streams=len({op.stream for op in ops if op.recorded}), steps=len(log.steps),
            span_s=s_from_ps(max(op.end_ps for op in ops)), unexplained_waits=int((place.gap >= 0).sum()),
            unexplained_s=s_from_ps(int(place.gap_ps.sum())),
        )
        for number, ops, place in zip(log.numbers, ranks, placed, strict=True)
    )  # fmt: skip
    lone = sum(op.is_comm and op.call is None for ops in ranks for op in ops)
    return ImportReport(
        ranks=reports, world_size=len(log.numbers), coupled_collectives=coupled, lone_collectives=lone,
        refused_groups=tuple(refused), clock_shift_us=tuple(0.0 for _ in log.numbers), skipped=skipped,
        format="worker_log", inferred=tuple(inferred),
        missing=("launches and kernels are not in the log: an op is a stage's whole forward or backward",),
    )  # fmt: skip
