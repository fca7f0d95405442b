"""Edits of kernels: k times faster, gone, or fused with their neighbours."""

from __future__ import annotations

import difflib
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from simcore.errors import InputError, nearest
from simcore.graph import EdgeKind, Graph, OpKind, Strings
from simcore.graph.kinds import is_communication, is_on_gpu, is_p2p
from simcore.graph.passes.traffic import border
from simcore.graph.passes.view import GraphView
from simcore.outside import found_in
from simcore.units import PS_PER_S
from workloads.edits.job import EditableJob, Edited, count_changed
from workloads.edits.kernels.classes import CLASSES, COMPUTE_BOUND, op_classes
from workloads.edits.kernels.times import alone_times
from workloads.edits.registry import FACTOR, FLAG, TEXT, EditCall, edit

BoolArray = npt.NDArray[np.bool_]
_LONGEST_PS = 86_400 * PS_PER_S


def edited_kernels(job: EditableJob) -> EditableJob:
    """The job as its GPU runs it, marked so that edits of the program are refused from now on."""
    job = job.launched()
    options = {**job.graph.workload.options, "edited_kernels": True}
    workload = replace(job.graph.workload, options=options)
    return replace(job, graph=replace(job.graph, workload=workload))


def matching(graph: Graph, pattern: str) -> BoolArray:
    """GPU ops whose name a regular expression finds.  InputError for a bad one and when it finds nothing."""
    names = graph.ops.name
    found = np.array(found_in(pattern, names.values, "kernels"), dtype=np.bool_)[names.codes]
    on_gpu = is_on_gpu(graph.ops.kind)
    if not (found & on_gpu).any():
        used = sorted({names.values[code][:60] for code in np.unique(names.codes[on_gpu])})
        close = difflib.get_close_matches(pattern, used, n=1, cutoff=0.3)
        shown = f"did you mean {close[0]!r}?" if close else f"kernels: {', '.join(used[:6])}, ..."
        raise InputError(f"no kernel matches {pattern!r}; {shown}")
    mask: BoolArray = found & on_gpu
    return mask


def whole_collectives(graph: Graph, rows: BoolArray) -> BoolArray:
    """``rows`` with every member of the collectives in it: those of one group with one number."""
    ops = graph.ops
    meeting = rows & (ops.kind == OpKind.COLLECTIVE)
    chosen: set[tuple[str, int]] = set()
    numbered: list[tuple[str, int, int]] = []
    for program in graph.programs:
        counts: dict[str, int] = {}
        flat = graph.flat_ops(program).row
        for row in flat[ops.kind[flat] == OpKind.COLLECTIVE].tolist():
            group = ops.group[row]
            if graph.groups[group].size == 1:
                continue
            number = counts[group] = counts.get(group, -1) + 1
            numbered.append((group, number, row))
            if meeting[row]:
                chosen.add((group, number))
    result = rows.copy()
    result[[row for group, number, row in numbered if (group, number) in chosen]] = True
    return result


def lasting(job: EditableJob, rows: BoolArray, new_ps: npt.NDArray[np.float64]) -> EditableJob:
    """The job with ``rows`` lasting ``new_ps[rows]``.  InputError for more than a day."""
    recorded = job.graph.ops.recorded_ps.copy()
    longest = max(new_ps[rows], default=0.0)
    if not longest <= _LONGEST_PS:
        raise InputError(f"a kernel would take {longest / PS_PER_S:.3g} s, more than a day")
    recorded[rows] = np.rint(new_ps[rows]).astype(np.int64)
    return job.with_ops(recorded_ps=recorded)


@edit(
    "kernel.<regex>.speed",
    value=FACTOR,
    help="kernels whose name the regular expression finds are so many times faster",
)
def kernel_speed(job: EditableJob, call: EditCall) -> Edited:
    """Durations divided by the factor."""
    job = edited_kernels(job)
    rows = matching(job.graph, call.names[0])
    if job.ranks:
        rows = whole_collectives(job.graph, rows)
    return _faster(job, rows, call.value)


@edit(
    "class.<class>.speed",
    value=FACTOR,
    help="kernels of a cost class (gemm, elementwise, communication, ...) are so many times faster",
)
def class_speed(job: EditableJob, call: EditCall) -> Edited:
    """Durations divided by the factor."""
    job = edited_kernels(job)
    return _faster(job, _of_class(job.graph, call.names[0]), call.value)


def _of_class(graph: Graph, wanted: str) -> BoolArray:
    if wanted not in CLASSES:
        raise InputError(f"unknown class {wanted!r}{nearest(wanted, CLASSES)}")
    classes = op_classes(graph)
    rows: BoolArray = classes == wanted
    if not rows.any():
        raise InputError(
            f"no kernel of class {wanted!r}; classes here: {', '.join(sorted(set(classes) - {''}))}"
        )
    return rows


def _faster(job: EditableJob, rows: BoolArray, factor: float) -> Edited:
    assumed = ["launches, gaps and everything else as before"]
    if (rows & is_communication(job.graph.ops.kind)).any():
        assumed.append("communication still waits for its last rank, and no longer shares links with others")
    faster = lasting(job, rows, alone_times(job, rows) / factor)
    return Edited(faster, tuple(assumed), count_changed(job.graph, rows))


@edit(
    "remove.communication",
    value=FLAG,
    help="collectives vanish, sends and receives take no time",
)
def remove_communication(job: EditableJob, _: EditCall) -> Edited:
    """All communication without time; sends and receives stay as dependencies."""
    job = edited_kernels(job)
    rows = is_communication(job.graph.ops.kind)
    if not rows.any():
        raise InputError("the job has no communication")
    return _without(job, rows)


@edit("remove.<regex>", value=FLAG, help="kernels whose name the regular expression finds vanish")
def remove_kernels(job: EditableJob, call: EditCall) -> Edited:
    """Kernels without time, gap and launch."""
    job = edited_kernels(job)
    return _without(job, whole_collectives(job.graph, matching(job.graph, call.names[0])))


def _without(job: EditableJob, rows: BoolArray) -> Edited:
    """``rows`` become points in their streams: what ordered them orders still, and nothing takes time."""
    ops = job.graph.ops
    pairs = rows & is_p2p(ops.kind)
    assumed = ["order within streams and waits stay"]
    if pairs.any():
        assumed.append("data of sends arrives at once, but not before it is sent")
    if (rows & (ops.kind == OpKind.COLLECTIVE)).any():
        assumed.append("ranks no longer wait for each other in collectives")
    if job.ranks:
        assumed.append("the host's time for their launches stays, it is not recorded apart")
    gone = _points(job, rows & ~pairs)
    return Edited(lasting(gone, pairs, np.zeros(len(ops))), tuple(assumed), count_changed(job.graph, rows))


def _points(job: EditableJob, rows: BoolArray) -> EditableJob:
    """``rows`` as ops without time or launch; so is the recorded gap just before each."""
    ops = job.graph.ops
    kind, recorded = ops.kind.copy(), ops.recorded_ps.copy()
    kind[rows] = int(OpKind.EVENT_WAIT)
    recorded[rows] = 0
    before = np.flatnonzero(rows) - 1
    before = before[before >= 0]
    gaps = before[
        (ops.kind[before] == OpKind.EVENT_WAIT) & (ops.stream.codes[before] == ops.stream.codes[before + 1])
    ]
    recorded[gaps] = 0
    return job.with_ops(kind=kind, recorded_ps=recorded)


@edit(
    "fuse",
    value=TEXT,
    help="neighbours on a stream that these regular expressions (comma-separated) find become one kernel",
)
def fuse(job: EditableJob, call: EditCall) -> Edited:
    """Runs of matching kernels as one: gaps, launches and traffic between them go."""
    job = edited_kernels(job)
    graph = job.graph
    rows = np.zeros(len(graph.ops), dtype=np.bool_)
    for pattern in filter(None, call.value.split(",")):
        rows |= matching(graph, pattern)
    rows &= graph.ops.kind == OpKind.COMPUTE
    runs = _runs(graph, rows)
    if not runs:
        raise InputError(f"no two kernels that follow each other on a stream match {call.value!r}")
    members = np.zeros(len(rows), dtype=np.bool_)
    members[[row for run in runs for row in run]] = True
    times, classes = alone_times(job, members), op_classes(graph)
    read, written = graph.ops.bytes_read.copy(), graph.ops.bytes_written.copy()
    names, new_ps = list(graph.ops.name.values), np.zeros(len(rows))
    codes = graph.ops.name.codes.copy()
    view = None if job.ranks else GraphView(graph)
    fused_name: dict[tuple[int, ...], int] = {}
    for run in runs:
        bound = [row for row in run if classes[row] in COMPUTE_BOUND]
        memory = [row for row in run if classes[row] not in COMPUTE_BOUND]
        streaming = max((float(times[row]) for row in memory), default=0.0)
        last = run[-1]
        if view is not None and memory:
            # Memory-bound time goes with bytes: those that still cross the border of the fused kernel.
            columns = border(view, run).columns()
            read[last], written[last] = int(columns["bytes_read"]), int(columns["bytes_written"])
            moved = sum(int(graph.ops.bytes_read[r] + graph.ops.bytes_written[r]) for r in memory)
            share = min(1.0, (read[last] + written[last]) / moved) if moved else 1.0
            streaming = sum(float(times[row]) for row in memory) * share
        new_ps[last] = max(sum(float(times[row]) for row in bound), streaming)
        key = tuple(codes[list(run)].tolist())
        if key not in fused_name:
            fused_name[key] = len(names)
            names.append(
                f"fused {len(fused_name)}: " + " + ".join(graph.ops.name.values[c][:40] for c in key)
            )
        codes[last] = fused_name[key]
    lasts = np.zeros(len(rows), dtype=np.bool_)
    lasts[[run[-1] for run in runs]] = True
    fused = lasting(_points(job, members & ~lasts), lasts, new_ps)
    fused = _gap_before_first(job, fused, runs)
    fused = fused.with_ops(name=Strings(codes, tuple(names)), bytes_read=read, bytes_written=written)
    traffic = (
        "memory-bound parts last as long as the longest of them (bytes are not recorded)"
        if view is None
        else "memory-bound parts last in proportion to the bytes that leave or enter the fused kernel"
    )
    assumed = (
        f"{len(runs)} runs of kernels become one kernel each",
        traffic,
        "matrix products in it last as before and hide the rest",
    )
    return Edited(fused, assumed, count_changed(graph, members))


def _gap_before_first(job: EditableJob, fused: EditableJob, runs: list[list[int]]) -> EditableJob:
    """Of the recorded gaps around a run only the one before its first kernel is left."""
    before, after = job.graph.ops, fused.graph.ops
    recorded = after.recorded_ps.copy()
    for first, *_, last in runs:
        for row, kept in ((first - 1, True), (last - 1, False)):
            if row >= 0 and before.kind[row] == OpKind.EVENT_WAIT:
                recorded[row] = before.recorded_ps[row] if kept else 0
    return fused.with_ops(recorded_ps=recorded)


def _runs(graph: Graph, rows: BoolArray) -> list[list[int]]:
    """Maximal runs of ``rows`` that follow each other on a stream; nobody else waits for their middle."""
    ops, edges = graph.ops, graph.edges
    waits = edges.kind == EdgeKind.WAIT
    waited_for = np.zeros(len(ops), dtype=np.bool_)
    waited_for[edges.src[waits & (edges.src >= 0)]] = True
    waiting = np.zeros(len(ops), dtype=np.bool_)
    waiting[edges.dst[waits]] = True
    runs: list[list[int]] = []
    for stream in GraphView(graph).stream_runs:
        run: list[int] = []
        for row in stream:
            gap = ops.kind[row] == OpKind.EVENT_WAIT
            if gap and not waiting[row] and run:
                continue
            if not rows[row] or waiting[row]:
                runs.append(run)
                run = []
            if rows[row]:
                run.append(row)
                if waited_for[row]:
                    runs.append(run)
                    run = []
        runs.append(run)
    return [run for run in runs if len(run) > 1]
