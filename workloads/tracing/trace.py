"""Trace a job: fingerprint every rank, trace one of each class, extend, assemble.

Worker processes are one rank after another.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simcore.errors import InputError
from simcore.graph import Graph, verify
from workloads.tracing import fake_device, group_families, rank_classes, rank_run
from workloads.tracing.assemble import assemble, gpt_workload
from workloads.tracing.extend import extend
from workloads.tracing.job import MegatronGptJob
from workloads.tracing.pool import Progress, WorkerPool, workers
from workloads.tracing.rank_run import RankTrace
from workloads.tracing.recording import GROUP
from workloads.tracing.templates import CutProgram

Call = tuple[int, int, bool]  # rank, microbatches, warm up


@dataclass
class TraceReport:
    """What happened while tracing: ranks run, classes found, things the user should know."""

    ranks_run: int = 0
    rank_classes: int = 0
    traced_microbatches: int = 0
    warnings: list[str] = field(default_factory=list)


def trace_megatron_gpt(
    job: MegatronGptJob,
    *,
    name: str = "megatron-gpt",
    num_workers: int | None = None,
    cache: Path | None = None,
    extend_microbatches: bool = True,
    progress: Progress | None = None,
) -> tuple[Graph, TraceReport]:
    """The execution graph of ``job``, verified.

    ``num_workers``: processes, default one per core.  ``extend_microbatches`` off: trace every microbatch.
    FakeDeviceError when torch cannot be used here, TracingError when the program fails.
    """
    report = TraceReport()
    with megatron_workers(num_workers, cache, report) as pool:
        graph = trace_in(
            pool, job, report, name=name, extend_microbatches=extend_microbatches, progress=progress
        )
    return graph, report


def trace_in(
    pool: WorkerPool,
    job: MegatronGptJob,
    report: TraceReport,
    *,
    name: str = "megatron-gpt",
    extend_microbatches: bool = True,
    progress: Progress | None = None,
) -> Graph:
    """As :func:`trace_megatron_gpt`, in workers that are running already; fills ``report``."""
    run, stands_for = rank_classes.sample_ranks(job)
    if len(run) < job.world_size:
        report.warnings.append(rank_classes.sampling_warning(job, run))
    calls = [(rank, job.fingerprint_microbatches, False) for rank in run]
    seen = {trace.rank: trace for trace in gpt_traces(pool, job, calls, "fingerprint", progress)}
    stages = {rank: job.stage_of(rank) for rank in range(job.world_size)}
    classes = rank_classes.group_ranks(
        {rank: fingerprint(trace) for rank, trace in seen.items()}, stands_for, stages
    )
    report.ranks_run, report.rank_classes = len(run), len(classes)
    calls = [
        (
            one.representative,
            job.traced_microbatches(one.stage) if extend_microbatches else job.microbatches,
            True,
        )
        for one in classes
    ]
    report.traced_microbatches = max(microbatches for _, microbatches, _ in calls)
    traced = {trace.rank: trace for trace in gpt_traces(pool, job, calls, "trace", progress)}
    extended = {rank: extend_trace(job, trace) for rank, trace in traced.items()}
    programs = {rank: program for rank, program in extended.items() if program is not None}
    missing = sorted(extended.keys() - programs.keys())
    if missing:
        report.warnings.append(
            f"no steady state seen in {report.traced_microbatches} microbatches on ranks "
            f"{rank_classes.contiguous_text(missing)}: traced all {job.microbatches}"
        )
        for trace in gpt_traces(
            pool, job, [(rank, job.microbatches, True) for rank in missing], "trace in full", progress
        ):
            traced[trace.rank], programs[trace.rank] = trace, trace.program
    ordered = [traced[one.representative] for one in classes]
    used = {symbol for trace in (*seen.values(), *ordered) for symbol in communicating(trace.program)}
    groups = group_families.used_families(ordered[0].families, used, job.world_size)
    for trace in (*seen.values(), *ordered):
        group_families.check_all(groups, trace.rank, trace.groups)
    workload = gpt_workload(job, name, ordered[0])
    graph = assemble(workload, classes, ordered, [programs[one.representative] for one in classes], groups)
    report.warnings += verify(graph)
    return graph


def fingerprint(trace: RankTrace) -> str:
    """What a rank did and holds, independent of who it is."""
    return f"{trace.program.digest()} {trace.memory} {trace.layer_offset}"


def extend_trace(job: MegatronGptJob, trace: RankTrace) -> CutProgram | None:
    """The program of one trace at the job's number of microbatches; None when it cannot be extended."""
    return extend(trace.program, trace.num_microbatches, job.microbatches, job.period)


def communicating(program: CutProgram) -> set[str]:
    """Symbols of the groups that a program's ops use."""
    return {str(row[GROUP]) for template in program.templates.values() for row in template.rows if row[GROUP]}


def gpt_traces(
    pool: WorkerPool,
    job: MegatronGptJob,
    calls: Iterable[Call],
    phase: str = "trace",
    progress: Progress | None = None,
) -> list[RankTrace]:
    """Run ``(rank, microbatches, warm_up)`` calls, in any order of completion.

    TracingError, naming the rank, when one fails.
    """
    return pool.ranks(rank_run.run_rank, [(job, *call) for call in calls], _rank_of, phase, progress)


def _rank_of(call: tuple[Any, ...]) -> int:
    return int(call[1])


@contextmanager
def megatron_workers(
    num_workers: int | None = None, cache: Path | None = None, report: TraceReport | None = None
) -> Iterator[WorkerPool]:
    """Spawned processes with the fake device and Megatron installed."""
    installed = fake_device.find_torch()
    _require_megatron()
    untested = fake_device.untested_warning(installed)
    if untested and report is not None:
        report.warnings.append(untested)
    with workers(rank_run.prepare, num_workers, cache) as pool:
        yield pool


def _require_megatron() -> None:
    for module, package in (("megatron", "megatron-core"), ("einops", "einops")):
        if importlib.util.find_spec(module) is None:
            raise InputError(
                f"tracing needs {package}, which is not installed: pip install --no-deps {package}"
            )
