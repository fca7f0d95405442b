"""A trace set imported: the graph to replay, what was recorded, and how far it can be trusted."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

import numpy as np

from simcore.errors import InputError, nearest
from simcore.graph import Graph
from simcore.graph.ops import IntArray, Strings
from simcore.units import PS_PER_S, PS_PER_US
from workloads.imports.clocks import Clock
from workloads.imports.collectives import Coupling, couple
from workloads.imports.described_ops import with_shapes
from workloads.imports.details import recorded_collectives, recorded_shapes
from workloads.imports.host import host_blocks, launch_latency, launch_times
from workloads.imports.host_order import host_order
from workloads.imports.json_events import TraceFile, trace_files
from workloads.imports.kineto import read_kineto
from workloads.imports.rank_ops import RankOps, rank_ops
from workloads.imports.recorded import ImportedRank, RecordedOps
from workloads.imports.recorded_graph import RecordedRank, build_graph
from workloads.imports.recording import MAX_SPAN_S, KinetoTrace, Step
from workloads.imports.report import ImportReport, RankReport, rank_report
from workloads.imports.threads import host_threads
from workloads.imports.waits import find_waits


@dataclass(frozen=True)
class ImportedJob:
    """A graph whose ops last what was recorded, one program per rank, and the import report.

    ``origin`` is the importer's own value, where something else than a replay can be made of it: the log of
    a pipeline, the workers of a job.
    """

    graph: Graph
    ranks: tuple[ImportedRank, ...]
    report: ImportReport
    origin: object = None


GAPS = ("recorded", "typical")
_RANK_OF_FILE = re.compile(r"rank[-_.]?(\d{1,6})(?!\d)", re.IGNORECASE)


def import_kineto(paths: Sequence[Path], *, skip_bad: bool = False, gaps: str = "recorded") -> ImportedJob:
    """Import the traces at ``paths``, one per rank: files, archives or folders.

    ``skip_bad`` leaves out files that cannot be read, naming them in the report.  ``gaps``: launch latencies
    and gaps between kernels as each was recorded, or the typical one of the rank for all.
    Errors: InputError for a bad file, two traces of one rank, or nothing left to replay.
    """
    if gaps not in GAPS:
        raise InputError(f"unknown gaps {gaps!r}{nearest(gaps, GAPS)}")
    if not paths:
        raise InputError("no trace given")
    sources = [found for path in paths for found in trace_files(path)]
    return import_recordings(sources, lambda source: [read_kineto(source)], skip_bad=skip_bad, gaps=gaps)


def import_recordings(
    sources: Sequence[TraceFile],
    read: Callable[[TraceFile], list[KinetoTrace]],
    *,
    skip_bad: bool,
    gaps: str,
    origin: str = "kineto",
) -> ImportedJob:
    """Import files that ``read`` turns into recordings of GPU activities and host calls, one per rank.

    ``origin`` names the format in the report.
    Errors: as :func:`import_kineto`.
    """
    traces: list[KinetoTrace] = []
    skipped: list[str] = []
    analysed: list[RankOps] = []
    for source in sources:
        try:
            found = read(source)
            ops = [rank_ops(trace) for trace in found]
        except InputError as error:
            if not skip_bad:
                raise
            skipped.append(str(error))
            continue
        traces += found
        analysed += ops
    if not traces:
        raise InputError("no trace could be read: " + "; ".join(skipped))
    numbers = _rank_numbers(traces)
    order = sorted(range(len(traces)), key=lambda i: numbers[i])
    numbers = [numbers[i] for i in order]
    analysed = [analysed[i] for i in order]
    job = _assemble(analysed, numbers, skipped, typical=gaps == "typical")
    return replace(job, report=replace(job.report, format=origin))


def _assemble(
    analysed: list[RankOps], numbers: list[int], skipped: list[str], *, typical: bool
) -> ImportedJob:
    base = _base_ps([ops.trace for ops in analysed])
    coupling = couple(analysed, numbers, base) if len(analysed) > 1 else _nobody(analysed)
    ranks, reports = [], []
    for number, ops in zip(numbers, analysed, strict=True):
        rank = _analyse(ops, typical=typical)
        ranks.append(rank)
        reports.append(rank_report(number, rank))
    begins = [clock.common(_begin(ops)) for clock, ops in zip(coupling.clocks, analysed, strict=True)]
    lead = [begin - min(begins) for begin in begins]
    name = Path(analysed[0].trace.label).name.split(".")[0]
    graph, flat = build_graph(ranks, numbers, coupling, lead, name)
    imported = tuple(
        _imported(number, ops, op_row) for number, ops, op_row in zip(numbers, analysed, flat, strict=True)
    )
    graph = with_shapes(graph, imported)
    report = _report(reports, coupling, analysed, base, skipped)
    return ImportedJob(graph, imported, replace(report, found=_found(graph, imported)))


def _found(graph: Graph, ranks: tuple[ImportedRank, ...]) -> tuple[str, ...]:
    """What the recording says of its ops beyond their times."""
    rows = np.concatenate([graph.template_start[i] + rank.flat for i, rank in enumerate(ranks)])
    ops, found = graph.ops, []
    for words, told in (
        ("in a backward or an optimizer step", ~ops.phase.equals("fwd")),
        ("in a known module", ~ops.module.equals("")),
        ("with recorded shapes", ~ops.in_shapes.equals("")),
    ):
        count = int(told[rows].sum())
        if count:
            found.append(f"{count:,} of {len(rows):,} ops were launched {words}")
    return tuple(found)


def _analyse(ops: RankOps, *, typical: bool) -> RecordedRank:
    latency = launch_latency(ops)
    waits = find_waits(ops, latency)
    times = launch_times(ops, waits, latency, typical=typical)
    threads = host_threads(ops)
    blocks = host_blocks(ops, threads)
    order = host_order(ops, times, blocks.blocks, _begin(ops), threads, waits)
    return RecordedRank(ops, waits, times, blocks, order, threads)


def _begin(ops: RankOps) -> int:
    """When the replay of a rank begins: with its first launch."""
    return min(int(ops.issue_ps.min()), int(ops.start_ps[0]))


def _nobody(analysed: list[RankOps]) -> Coupling:
    return Coupling(alone=int(analysed[0].is_comm.sum()), clocks=(Clock(0),))


def _base_ps(traces: list[KinetoTrace]) -> list[int]:
    """Origins relative to the first trace's, as the time stamps tell.

    Errors: InputError for a trace that begins over a week from the first.
    """
    first = traces[0]
    base = [
        (trace.origin_us - first.origin_us) * PS_PER_US + (trace.base_ns - first.base_ns) * 1000
        for trace in traces
    ]
    for trace, ps in zip(traces, base, strict=True):
        if abs(ps) > MAX_SPAN_S * PS_PER_S:
            days = abs(ps) / PS_PER_S / 86400
            raise InputError(f"{trace.label}: begins {days:.3g} days from {first.label}: of another run?")
    return base


def _rank_numbers(traces: list[KinetoTrace]) -> list[int]:
    """Rank of each trace: what it says, else what the file's name says if all differ, else the next free."""
    taken: dict[int, str] = {}
    for trace in traces:
        if trace.rank >= 0:
            if trace.rank in taken:
                raise InputError(f"{trace.label} and {taken[trace.rank]} are both of rank {trace.rank}")
            taken[trace.rank] = trace.label
    silent = [trace for trace in traces if trace.rank < 0]
    named = [_RANK_OF_FILE.search(PurePath(trace.label).name) for trace in silent]
    told = [int(found.group(1)) for found in named if found is not None]
    if len({*told, *taken}) == len(traces):
        by_name = iter(told)
        return [trace.rank if trace.rank >= 0 else next(by_name) for trace in traces]
    free = iter(n for n in range(len(traces) + len(taken)) if n not in taken)
    return [trace.rank if trace.rank >= 0 else next(free) for trace in traces]


def _imported(number: int, ops: RankOps, flat_rows: IntArray) -> ImportedRank:
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
        shapes=recorded_shapes(ops),
        collectives=recorded_collectives(ops),
    )


def _report(
    reports: list[RankReport],
    coupling: Coupling,
    analysed: list[RankOps],
    base: list[int],
    skipped: list[str],
) -> ImportReport:
    told_by = dict.fromkeys(ops.trace.steps_told_by for ops in analysed if ops.trace.steps_told_by)
    worlds = {ops.trace.world_size for ops in analysed if ops.trace.world_size > 0}
    return ImportReport(
        ranks=tuple(reports),
        world_size=max(worlds, default=-1),
        coupled_collectives=len(coupling.meetings),
        lone_collectives=coupling.alone,
        refused_groups=coupling.refused,
        clock_shift_us=tuple(
            round((clock.shift_ps - told) / PS_PER_US, 3)
            for clock, told in zip(coupling.clocks, base, strict=True)
        ),
        skipped=tuple(skipped),
        inferred=tuple(f"no ProfilerStep annotations: steps are {evidence}" for evidence in told_by),
    )
