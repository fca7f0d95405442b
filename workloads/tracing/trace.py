"""Trace a job: fingerprint every rank, trace one of each class, extend, assemble.

Runs ranks in spawned worker processes (never forked: autograd's threads do not survive a fork), each of
which is one rank after another.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from simcore.errors import InputError, SimcoreError
from simcore.graph import Graph, verify
from workloads.tracing import fake_device, group_families, rank_classes, rank_run
from workloads.tracing.assemble import assemble
from workloads.tracing.extend import extend
from workloads.tracing.job import MegatronGptJob
from workloads.tracing.rank_run import RankTrace
from workloads.tracing.recording import GROUP
from workloads.tracing.templates import CutProgram

#: ``(phase, done, total)``, called as ranks finish.
Progress = Callable[[str, int, int], None]

Call = tuple[int, int, bool]  # rank, microbatches, warm up


@dataclass
class TraceReport:
    """What happened while tracing: ranks run, classes found, things the user should know."""

    ranks_run: int = 0
    rank_classes: int = 0
    traced_microbatches: int = 0
    warnings: list[str] = field(default_factory=list)


class TracingError(SimcoreError):
    """A worker process died or the program under trace failed."""


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
    with workers(num_workers, cache, report) as pool:
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
    seen = {trace.rank: trace for trace in pool.traces(job, calls, "fingerprint", progress)}
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
    traced = {trace.rank: trace for trace in pool.traces(job, calls, "trace", progress)}
    extended = {rank: extend_trace(job, trace) for rank, trace in traced.items()}
    programs = {rank: program for rank, program in extended.items() if program is not None}
    missing = sorted(extended.keys() - programs.keys())
    if missing:
        report.warnings.append(
            f"no steady state seen in {report.traced_microbatches} microbatches on ranks "
            f"{rank_classes.contiguous_text(missing)}: traced all {job.microbatches}"
        )
        for trace in pool.traces(
            job, [(rank, job.microbatches, True) for rank in missing], "trace in full", progress
        ):
            traced[trace.rank], programs[trace.rank] = trace, trace.program
    ordered = [traced[one.representative] for one in classes]
    used = {symbol for trace in (*seen.values(), *ordered) for symbol in communicating(trace.program)}
    groups = group_families.used_families(ordered[0].families, used, job.world_size)
    for trace in (*seen.values(), *ordered):
        group_families.check_all(groups, trace.rank, trace.groups)
    graph = assemble(job, name, classes, ordered, [programs[one.representative] for one in classes], groups)
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


class WorkerPool:
    """Worker processes in which torch is patched; see :func:`workers`."""

    def __init__(self, executor: ProcessPoolExecutor) -> None:
        self._executor = executor

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """The result of ``function``, a module's own, run in one worker."""
        return self._executor.submit(function, *args).result()

    def traces(
        self,
        job: MegatronGptJob,
        calls: Iterable[Call],
        phase: str = "trace",
        progress: Progress | None = None,
    ) -> list[RankTrace]:
        """Run ``(rank, microbatches, warm_up)`` calls, in any order of completion.

        TracingError, naming the rank, when one fails.
        """
        pending = {
            self._executor.submit(rank_run.run_rank, job, rank, microbatches, warm_up=warm_up): rank
            for rank, microbatches, warm_up in calls
        }
        total, found = len(pending), []
        waiting: set[Future[RankTrace]] = set(pending)
        if progress is not None:
            progress(phase, 0, total)
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                try:
                    found.append(future.result())
                except BrokenProcessPool:
                    raise TracingError(
                        f"a worker process died while it was rank {pending[future]} ({phase}); "
                        f"out of memory, or an unsupported torch build"
                    ) from None
                except Exception as error:
                    for other in waiting:
                        other.cancel()
                    raise TracingError(
                        f"rank {pending[future]} ({phase}): {type(error).__name__}: {error}"
                    ) from error
                if progress is not None:
                    progress(phase, len(found), total)
        return found


@contextmanager
def workers(
    num_workers: int | None = None, cache: Path | None = None, report: TraceReport | None = None
) -> Iterator[WorkerPool]:
    """Spawned processes with the fake device and Megatron installed."""
    installed = fake_device.find_torch()
    _require_megatron()
    folder = cache or fake_device.cache_folder()
    tier = fake_device.choose_tier(installed, folder)
    untested = fake_device.untested_warning(installed)
    if untested and report is not None:
        report.warnings.append(untested)
    count = num_workers or len(os.sched_getaffinity(0))
    with _environment(fake_device.child_environment()):
        executor = ProcessPoolExecutor(
            count, mp_context=get_context("spawn"), initializer=rank_run.prepare, initargs=(tier, str(folder))
        )
        try:
            yield WorkerPool(executor)
        finally:
            executor.shutdown(wait=True, cancel_futures=True)


def _require_megatron() -> None:
    for module, package in (("megatron", "megatron-core"), ("einops", "einops")):
        if importlib.util.find_spec(module) is None:
            raise InputError(
                f"tracing needs {package}, which is not installed: pip install --no-deps {package}"
            )


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Spawned processes inherit the environment of the moment in which they start."""
    before: dict[str, Any] = {key: os.environ.get(key) for key in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value
