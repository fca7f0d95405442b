"""Recordings of GPUs into a job: ranks told apart and coupled, the graph, what was recorded, the report."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path, PurePath

import numpy as np

from simcore.errors import InputError
from simcore.graph import Graph
from simcore.units import PS_PER_S, PS_PER_US, s_from_ps
from workloads.imports.files import TraceFile, read_each
from workloads.imports.job import ImportedJob, ImportReport, RankReport
from workloads.imports.recorded import MAX_SPAN_S, ImportedRank
from workloads.imports.recording.clocks import RecordedClock
from workloads.imports.recording.collectives import RankCoupling, couple
from workloads.imports.recording.columns import GpuRecording
from workloads.imports.recording.graph import RecordedRank, build_graph
from workloads.imports.recording.host import host_blocks, host_threads
from workloads.imports.recording.intervals import covered, merged
from workloads.imports.recording.launches import host_order, launch_latency, launch_times
from workloads.imports.recording.library_calls import with_library_calls
from workloads.imports.recording.rank_ops import RankOps, rank_ops
from workloads.imports.recording.recorded_ops import imported_rank_of
from workloads.imports.recording.waits import find_waits
from workloads.imports.shapes import with_shapes

_RANK_OF_FILE = re.compile(r"rank[-_.]?(\d{1,6})(?!\d)", re.IGNORECASE)


def import_recordings(
    sources: Sequence[TraceFile],
    read: Callable[[TraceFile], list[GpuRecording]],
    *,
    skip_bad: bool,
    gaps: str,
    origin: str,
) -> ImportedJob:
    """Import files that ``read`` turns into recordings of GPU activities and host calls, one per rank.

    ``skip_bad`` and ``gaps`` are those of :func:`~workloads.imports.formats.import_traces`; ``origin`` names
    the format in the report.
    Errors: InputError for a bad file, two recordings of one rank, or nothing left to replay.
    """
    by_file, skipped = read_each(
        sources,
        lambda source: [with_library_calls(rank_ops(trace)) for trace in read(source)],
        skip_bad=skip_bad,
    )
    unordered = [ops for found in by_file for ops in found]
    _check_copies([ops.trace for ops in unordered])
    numbers = _rank_numbers([ops.trace for ops in unordered])
    order = sorted(range(len(numbers)), key=lambda i: numbers[i])
    numbers, analysed = [numbers[i] for i in order], [unordered[i] for i in order]
    base = _base_ps([ops.trace for ops in analysed])
    coupling = couple(analysed, numbers, base) if len(analysed) > 1 else _nobody(analysed)
    ranks = [_analyse(ops, typical=gaps == "typical") for ops in analysed]
    begins = [clock.common(_begin(ops)) for clock, ops in zip(coupling.clocks, analysed, strict=True)]
    lead = [begin - min(begins) for begin in begins]
    name = Path(analysed[0].trace.label).name.split(".")[0]
    graph, flat = build_graph(ranks, numbers, coupling, lead, name)
    imported = tuple(
        imported_rank_of(number, ops, op_row)
        for number, ops, op_row in zip(numbers, analysed, flat, strict=True)
    )
    graph = with_shapes(graph, imported)
    told_by = dict.fromkeys(ops.trace.steps_told_by for ops in analysed if ops.trace.steps_told_by)
    world_size = max((ops.trace.world_size for ops in analysed if ops.trace.world_size > 0), default=-1)
    report = ImportReport(
        ranks=tuple(map(_rank_report, ranks, imported)),
        world_size=world_size,
        coupled_collectives=len(coupling.collectives),
        lone_collectives=coupling.alone,
        refused_groups=coupling.refused,
        clock_shift_us=tuple(
            round((clock.shift_ps - told) / PS_PER_US, 3)
            for clock, told in zip(coupling.clocks, base, strict=True)
        ),
        skipped=tuple(skipped),
        format=origin,
        found=_found(graph, imported),
        inferred=(
            *(f"no ProfilerStep annotations: steps are {evidence}" for evidence in told_by),
            *_host_waits([ops.trace for ops in analysed]),
        ),
        missing=_no_communication(analysed, world_size),
    )
    return ImportedJob(graph, imported, report)


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


def _host_waits(traces: list[GpuRecording]) -> tuple[str, ...]:
    """That waits of the host are told by its gaps, if some are."""
    count = sum(trace.inferred_host_waits for trace in traces)
    if not count:
        return ()
    return (f"{count} gaps of the host that end as a GPU op does are taken for waits for it, not for work",)


def _no_communication(ranks: list[RankOps], world_size: int) -> tuple[str, ...]:
    """That ranks of one job exchange nothing, which is hardly so."""
    world = max(world_size, len(ranks))
    if world < 2 or any(ops.is_comm.any() for ops in ranks):
        return ()
    return (
        f"a world of {world} ranks, and no kernel is known to communicate: those whose names are not known"
        " count as computation",
    )


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


def _nobody(analysed: list[RankOps]) -> RankCoupling:
    return RankCoupling(alone=int(analysed[0].is_comm.sum()), clocks=(RecordedClock(0),))


def _base_ps(traces: list[GpuRecording]) -> list[int]:
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


def _check_copies(traces: list[GpuRecording]) -> None:
    """InputError for two recordings that do not say their ranks and are equal: a file copied over another's.

    Clocks of real GPUs never agree so; ranks of a simulated job may, but their files say whose they are.
    """
    seen: dict[object, str] = {}
    for trace in traces:
        if trace.rank < 0:
            gpu, calls = trace.gpu, trace.calls
            parts = (gpu.start_ps, gpu.end_ps, gpu.correlation, gpu.num_bytes, calls.start_ps, calls.end_ps)
            times = tuple(part.tobytes() for part in parts)
            first = seen.setdefault(hash((trace.origin_us, trace.base_ns, trace.names, times)), trace.label)
            if first is not trace.label:
                both = f"{first} and {trace.label}"
                raise InputError(f"{both} hold the same recording: one was copied over the other")


def _rank_numbers(traces: list[GpuRecording]) -> list[int]:
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


def _rank_report(rank: RecordedRank, imported: ImportedRank) -> RankReport:
    """The facts of one analysed rank."""
    ops, trace = rank.ops, rank.ops.trace
    counts = np.unique(ops.call[ops.call >= 0], return_counts=True)[1]
    busy_from, busy_to = int(ops.start_ps[0]), int(ops.end_ps.max())
    late = merged(rank.times.unexplained_from_ps, ops.start_ps[rank.times.unexplained])
    busy = merged(ops.start_ps, ops.end_ps)
    lasts = ops.end_ps - ops.start_ps
    in_steps = int(lasts[np.concatenate(imported.step_ops)].sum())
    launched, lost = ops.launches()
    return RankReport(
        rank=imported.number,
        file=trace.label,
        gpu=trace.gpu_name,
        gpu_ops=len(ops),
        communication_kernels=int(ops.is_comm.sum()),
        streams=len(ops.lane_names),
        steps=len(trace.steps),
        resolution_us=trace.resolution_ps / 1e6,
        ops_without_launch=int((ops.call < 0).sum()),
        launches=launched,
        launches_without_op=len(lost),
        cut_steps=tuple(
            step.number for step in trace.steps if ((lost >= step.start_ps) & (lost < step.end_ps)).any()
        ),
        graph_launched_ops=int(counts[counts > 1].sum()),
        recorded_waits=rank.waits.recorded_calls,
        guessed_waits=rank.waits.guessed_calls,
        inferred_edges=int(rank.waits.inferred.sum()),
        contradicted_waits=rank.waits.dropped,
        blocking_calls=len(rank.blocks.blocks),
        inferred_blocks=rank.blocks.inferred,
        concurrent_blocks=rank.blocks.concurrent,
        host_threads=rank.threads.count,
        queue_full_blocks=rank.blocks.queue_full,
        overlaps_trimmed=ops.trimmed,
        host_bound_share=float(rank.times.host_bound.mean()),
        unexplained_waits=int(rank.times.unexplained.sum()),
        unexplained_s=s_from_ps(int((late[1] - late[0]).sum())),
        unexplained_busy_s=s_from_ps(int((covered(late[1], *busy) - covered(late[0], *busy)).sum())),
        outside_steps=1 - in_steps / max(1, int(lasts.sum())),
        span_s=s_from_ps(busy_to - busy_from),
    )
