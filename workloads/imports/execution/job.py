"""Execution traces into jobs: with the Kineto traces of the same run, or alone as programs without times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from simcore.errors import InputError
from workloads.imports.execution.graph import build_programs
from workloads.imports.execution.join import HostCalls, JoinedTrace, join
from workloads.imports.execution.read import ExecutionTrace, is_execution_trace, read_execution_trace
from workloads.imports.files import TraceFile, head_of, read_each
from workloads.imports.job import ImportedJob, ImportReport, RankReport
from workloads.imports.kineto.read import read_kineto
from workloads.imports.recording.columns import GpuRecording
from workloads.imports.recording.job import import_recordings

_FEW = 0.5  # of the calls matched: below, shapes are of another run, probably


def import_pairs(sources: Sequence[TraceFile], skip_bad: bool, gaps: str) -> ImportedJob:
    """Import Kineto traces together with execution traces of the same ranks.

    Pairs are told by rank where both recordings know it, else by the order of the files.
    Errors: InputError for a bad file, or an execution trace without its Kineto trace.
    """
    executions: list[ExecutionTrace | None] = []  # None: one that cannot be read, in its place
    timed, skipped = [], []
    for source in sources:
        if not is_execution_trace(source, head_of(source)):
            timed.append(source)
            continue
        try:
            executions.append(read_execution_trace(source))
        except InputError as error:
            if not skip_bad:
                raise
            skipped.append(str(error))
            executions.append(None)
    joined: list[JoinedTrace] = []
    left = [execution for execution in executions if execution is not None]

    def read(source: TraceFile) -> list[GpuRecording]:
        host = HostCalls()
        trace = read_kineto(source, host.take)
        partner = _partner(trace.rank, timed.index(source), executions)
        if partner is None:
            return [trace]
        if partner in left:
            left.remove(partner)
        joined.append(join(trace, host, partner))
        return [joined[-1].trace]

    job = import_recordings(timed, read, skip_bad=skip_bad, gaps=gaps, origin="kineto+execution_trace")
    if left:
        names = ", ".join(execution.label for execution in left[:3])
        if not (skip_bad and job.report.skipped):
            raise InputError(f"{names}: no Kineto trace of the same rank among the files")
        skipped.append(f"{names}: the Kineto trace of the same rank was left out")
    found, inferred = [], []
    matched, calls = sum(j.matched for j in joined), sum(j.calls for j in joined)
    by = sorted({j.by for j in joined if j.matched})
    found.append(f"{matched} of {calls} calls have the tensors of the execution trace, by {', '.join(by)}")
    sizes = sum(j.collectives for j in joined)
    if sizes:
        found.append(f"{sizes} communication kernels have the sizes that the execution trace tells")
    if matched < _FEW * calls:
        inferred.append(
            f"only {matched} of {calls} calls are in the execution trace: it may be of another run or step;"
            " shapes of the others are unknown, they cannot be predicted anew"
        )
    report = replace(
        job.report,
        found=(*found, *job.report.found),
        inferred=(*job.report.inferred, *inferred),
        skipped=(*skipped, *job.report.skipped),
    )
    return replace(job, report=report)


def _partner(rank: int, place: int, executions: Sequence[ExecutionTrace | None]) -> ExecutionTrace | None:
    """The execution trace of a rank; without ranks the one in the same place."""
    known = [execution for execution in executions if execution is not None]
    of_rank = [execution for execution in known if execution.rank >= 0 and execution.rank == rank]
    if len(of_rank) == 1:
        return of_rank[0]
    unknown = rank < 0 or any(execution.rank < 0 for execution in known)
    return executions[place] if unknown and place < len(executions) else None


def import_execution_traces(sources: Sequence[TraceFile], skip_bad: bool, gaps: str) -> ImportedJob:
    """Import execution traces alone: a graph of what ran, with shapes and sizes, all durations unknown (-1).

    Nothing can be replayed; the graph can be simulated on hardware, or exported.  ``gaps`` has no meaning.
    Errors: InputError for a bad file, or two traces of one rank.
    """
    del gaps  # launches are not recorded
    traces, skipped = read_each(sources, read_execution_trace, skip_bad=skip_bad)
    if all(trace.rank >= 0 for trace in traces):
        traces.sort(key=lambda trace: trace.rank)
        for before, after in pairwise(traces):
            if before.rank == after.rank:
                raise InputError(f"{before.label} and {after.label} are both of rank {after.rank}")
    graph, refused = build_programs(traces)
    ranks = []
    for index, trace in enumerate(traces):
        ops = graph.ops
        first, last = int(graph.template_start[index]), int(graph.template_start[index + 1])
        ranks.append(
            RankReport(
                rank=trace.rank if trace.rank >= 0 else index, file=trace.label, gpu_ops=last - first,
                communication_kernels=int((ops.num_bytes[first:last] > 0).sum()), streams=2,
            )
        )  # fmt: skip
    report = ImportReport(
        ranks=tuple(ranks),
        world_size=len(traces),
        refused_groups=tuple(refused),
        clock_shift_us=(0.0,) * len(traces),
        skipped=tuple(skipped),
        format="execution_trace",
        found=("ops with shapes and types of inputs and outputs, data dependencies by storage",),
        inferred=("which calls launch a kernel is told by their names: views and allocations launch none",),
        missing=(
            "no durations, streams or host times: nothing to replay; every time is a prediction from shapes."
            " Give the Kineto traces of the same run along to replay",
        ),
    )
    return ImportedJob(graph, (), report)
