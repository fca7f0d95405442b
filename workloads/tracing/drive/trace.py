"""The driver: run the ranks of a job that differ, group them by what they recorded, assemble the graph."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path
from typing import Protocol

from simcore.errors import GraphError
from simcore.graph import DisagreementError, Graph, Workload, verify
from simcore.graph.layout import contiguous_text
from simcore.graph.passes import fuse_regions
from simcore.memory.peak import peak_memory
from workloads.tracing.drive.doubts import doubts
from workloads.tracing.drive.fork_server import WorkerPool
from workloads.tracing.drive.framework_imports import Preparation
from workloads.tracing.drive.rank_classes import DistinctRanks, StartRounds, TraceReport
from workloads.tracing.drive.rounds import Progress, Rounds, workers
from workloads.tracing.drive.script_job import OtherStepsError, ScriptJob
from workloads.tracing.fake import device
from workloads.tracing.fake.mail import unlink_segments
from workloads.tracing.record import group_families
from workloads.tracing.record.assemble import assemble
from workloads.tracing.record.recording import GROUP
from workloads.tracing.record.uneven import levelled


class TracedJob(Protocol):
    """What can be traced: a :class:`ScriptJob`, or a recipe, whose ranks are script jobs that it writes."""

    @property
    def world_size(self) -> int:
        """Ranks of the job."""
        ...

    @property
    def by_recipe(self) -> bool:
        """Whether the program says itself what it does: its ops and memory are left as they are."""
        ...

    def preparation(self) -> Preparation:
        """What is done once for all ranks."""
        ...

    def distinct_ranks(self, start: StartRounds, report: TraceReport) -> DistinctRanks:
        """Run ranks until every rank of the world has one that stands for it; fills ``report``."""
        ...

    def workload(self, name: str, found: DistinctRanks) -> Workload:
        """What the graph is a graph of; ``name`` "": the job's own; rank 0's class is the first."""
        ...


def trace(
    job: TracedJob,
    *,
    name: str = "",
    num_workers: int | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> tuple[Graph, TraceReport]:
    """The execution graph of one step of ``job``, verified.

    ``num_workers``: processes, default one per core.  FakeDeviceError when torch cannot be used here,
    ScriptError when a script cannot be traced, TracingError when a recipe fails, GraphError when ranks do not
    fit together.
    """
    report = TraceReport()
    untested = device.untested_warning(device.find_torch())
    if untested:
        report.warnings.append(untested)
    with workers(num_workers, cache, preparation=job.preparation()) as pool:
        return trace_in(pool, job, report, name=name, progress=progress), report


def cpu_s() -> float:
    """Processor seconds of this process and of those that it has waited for."""
    return sum(os.times()[:4])


def trace_in(
    pool: WorkerPool,
    job: TracedJob,
    report: TraceReport | None = None,
    *,
    name: str = "",
    progress: Progress | None = None,
) -> Graph:
    """As :func:`trace`, in workers that are running already; fills ``report``."""
    report = report or TraceReport()
    while True:
        try:
            return _trace_once(pool, job, report, name, progress)
        except OtherStepsError as error:
            assert isinstance(job, ScriptJob)
            if error.step is not None:
                first = (
                    ", in which optimizers make their states, and memory of parameters counts with the "
                    "activations'"
                )
                report.warnings.append(
                    f"the script takes no more than {error.step + 1} steps: the last is kept"
                    + (first if error.step == 0 else "")
                )
                job = replace(job, step=error.step)
            if error.closing is not None:
                job = replace(job, closing=error.closing)


def _trace_once(
    pool: WorkerPool, job: TracedJob, report: TraceReport, name: str, progress: Progress | None
) -> Graph:
    with _mailbox() as mail:

        def start(job_of: Callable[[int], ScriptJob], phase: str) -> Rounds:
            return Rounds(pool, job_of, mail, phase, progress, report.processes)

        found = job.distinct_ranks(start, report)
        if found.batches is not None and found.batches.differ_otherwise():
            # Shapes are the data's, and those of ranks between two that agree follow from nothing.
            found = found.settle(range(job.world_size)) or found
        graph = _assembled(job, found, name)
        while True:
            try:
                report.warnings += verify(graph)
                break
            except DisagreementError as error:
                settled = found.settle(error.ranks)
                if settled is None:
                    raise GraphError(f"{error}{_places(error, found)}") from None
                found = settled
                graph = _assembled(job, found, name)
    report.not_run, others = found.not_run, job.world_size - len(report.ranks_run)
    if found.batches is not None and others and found.batches.differ_otherwise():
        report.warnings.append(
            f"batches differ in shape from rank to rank, and what {others} of {job.world_size} ranks read is "
            f"not known: they are taken to do what the {len(report.ranks_run)} that were run do (--max-ranks)"
        )
    if found.assumed:
        report.warnings.append(
            f"ranks differ from each other; {len(report.ranks_run)} were run"
            f"{'' if job.by_recipe else ' (--max-ranks)'}, and {found.assumed} of {job.world_size} are taken "
            f"to do what the nearest of those does"
        )
    if not job.by_recipe:
        _describe(report, found)
        report.warnings += doubts(graph, report.values)
    return graph


@contextmanager
def _mailbox() -> Iterator[Path]:
    """A folder for what ranks send each other; one that fails may still write."""
    with tempfile.TemporaryDirectory(prefix="simcore-mail-", ignore_cleanup_errors=True) as folder:
        try:
            yield Path(folder)
        finally:
            unlink_segments(Path(folder))


def _places(error: DisagreementError, found: DistinctRanks) -> str:
    """A line for each rank that disagrees: where in its script it does."""
    lines = []
    for rank, call in zip(error.ranks, error.calls, strict=True):
        own = [one for one in found.seen if one.rank == rank]
        alike = [trace for one, trace in zip(found.classes, found.traces, strict=True) if rank in one.ranks]
        sites = next(iter((*own, *alike))).call_sites
        if call < len(sites):
            lines.append(f"\n  rank {rank}: at {sites[call] or 'an unknown place'}")
        elif sites:
            lines.append(f"\n  rank {rank}: nothing more after {sites[-1] or 'an unknown place'}")
    return "".join(lines)


def _assembled(job: TracedJob, found: DistinctRanks, name: str) -> Graph:
    first = found.traces[0]
    programs = (*found.programs, *(one.program for one in found.seen))
    used = {str(symbol) for program in programs for symbol in program.column(GROUP) if symbol}
    groups = group_families.used_families(first.families, used, job.world_size)
    for one in found.seen:
        group_families.check_all(groups, one.rank, one.groups)
    graph = levelled(assemble(job.workload(name, found), found.classes, found.traces, found.programs, groups))
    if not job.by_recipe and any("/fused:" in module for module in graph.ops.module.values):
        graph = fuse_regions(graph)
        fused = [
            replace(one, memory=replace(one.memory, activations_peak=found.activations, peak=found.total))
            for one, found in zip(graph.programs, peak_memory(graph), strict=True)
        ]
        graph = replace(graph, programs=tuple(fused))
    return graph


def _describe(report: TraceReport, found: DistinctRanks) -> None:
    for one, trace in zip(found.classes, found.traces, strict=True):
        ranks = contiguous_text(one.ranks)
        report.holders[ranks] = [asdict(holder) for holder in trace.holders]
        report.peak_bytes_by_phase[ranks] = dict(trace.peaks)
        report.held[ranks] = {
            name: " ".join(f"{size}x{len(list(alike))}" for size, alike in groupby(sizes))
            for name, sizes in trace.held.items()
        }
        report.values += [{"ranks": ranks, **asdict(asked), "times": times} for asked, times in trace.asked]
    report.warnings += [
        f"{name} is not installed: where it is called, a stand-in issues its kernels"
        for name in sorted({name for one in found.seen for name in one.stand_ins})
    ]
    counted = sorted({name for one in found.seen for name in one.counted})
    if counted:
        report.warnings.append(f"what these kernels cost is counted by their own code: {', '.join(counted)}")
    unused = set.intersection(*(set(one.unused) for one in found.seen))
    report.warnings += [f"--value {site}: no value was asked for there" for site in sorted(unused)]
