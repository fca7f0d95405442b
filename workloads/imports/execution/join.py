"""An execution trace joined with the Kineto trace of the same run: its tensors go to the kernels."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from simcore.graph.ops import IntArray, shapes_text
from simcore.records import dataclass
from workloads.imports.collective_names import FRAMEWORK_CALLS, LIBRARY_CALLS, is_communication
from workloads.imports.execution.read import ExecutionTrace, ObservedNode
from workloads.imports.fields import wholes
from workloads.imports.kineto.events import Args
from workloads.imports.op_columns import Columns, Names
from workloads.imports.recording.columns import CollectiveMeta, FrameworkCalls, GpuRecording
from workloads.imports.recording.intervals import innermost

Texts = npt.NDArray[np.object_]

_AGREE = 0.9  # of the calls that an id pairs must have equal names, or the id numbers something else
_START, _END, _THREAD, _NAME = range(4)


#: Arguments of a Kineto event that may number the calls as an execution trace does (``rf_id``), newest first.
_FUNCTION_IDS = ("Record function id", "External id", "Ev Idx")


class HostCalls:
    """All calls of the framework in a Kineto trace, shapes or not: times, thread, name, numbers by id."""

    def __init__(self) -> None:
        self.names = Names()
        self._found = Columns(4 + len(_FUNCTION_IDS))

    def take(
        self, names: list[str], args: list[Args], start_ps: IntArray, end_ps: IntArray, threads: list[int]
    ) -> None:
        """Note calls with their times, ps after the trace's origin."""
        told = ((given.function_id, given.external_id, given.event_index) for given in args)
        ids = [
            np.maximum(0, wholes(values, key, 0))
            for key, values in zip(_FUNCTION_IDS, zip(*told, strict=True), strict=True)
        ]
        self._found.add((start_ps, end_ps, threads, self.names.codes(names), *ids))

    def columns(self) -> IntArray:
        """Rows start, end, thread, name and the ids; columns sorted by start, outer calls first."""
        table = self._found.joined()
        return table[:, np.lexsort((-table[1], table[0]))]


@dataclass(frozen=True)
class JoinedTrace:
    """A Kineto trace with the tensors of its execution trace; calls ``matched``, and ``by`` what."""

    trace: GpuRecording
    matched: int
    calls: int
    by: str
    collectives: int


def join(trace: GpuRecording, host: HostCalls, execution: ExecutionTrace) -> JoinedTrace:
    """``trace`` with shapes and types of inputs and outputs, and with groups and sizes of collectives.

    Calls are paired by the id that the recordings share, if the names then agree; else the n-th call of a
    name on a thread is the n-th of that name in the execution trace.
    """
    columns = host.columns()
    names = np.array(host.names.values(), dtype=object)
    called = names[columns[_NAME]] if columns.shape[1] else np.zeros(0, dtype=object)
    node, by = _by_id(columns, called, execution)
    if not by:
        node, by = _by_order(columns, called, execution), "order of equal names"
    matched = np.flatnonzero(node >= 0)
    known = Names()
    for name in trace.names:
        known.code(name)
    framework = _framework(columns, called, node, execution, known)
    joined = replace(trace, framework=framework, rank=trace.rank if trace.rank >= 0 else execution.rank)
    joined, collectives = _with_collectives(joined, columns, node, execution)
    joined = replace(joined, names=known.values())
    return JoinedTrace(joined, len(matched), columns.shape[1], by, collectives)


def _by_id(columns: IntArray, called: Texts, execution: ExecutionTrace) -> tuple[IntArray, str]:
    node = np.full(columns.shape[1], -1, dtype=np.int64)
    number = {n.function_id: i for i, n in enumerate(execution.nodes) if n.function_id > 0}
    for place, key in enumerate(_FUNCTION_IDS):
        found = np.array([number.get(i, -1) for i in columns[4 + place].tolist()], dtype=np.int64)
        paired = np.flatnonzero(found >= 0)
        same = [i for i in paired.tolist() if execution.nodes[found[i]].name == called[i]]
        if len(same) >= max(1, _AGREE * len(paired)) and 2 * len(same) >= min(len(found), len(number)):
            node[same] = found[same]
            return node, key
    return node, ""


def _by_order(columns: IntArray, called: Texts, execution: ExecutionTrace) -> IntArray:
    """By name and thread; a name that one of the two saw more often is left out."""
    node = np.full(columns.shape[1], -1, dtype=np.int64)
    theirs: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for index, found in enumerate(execution.nodes):
        theirs[found.thread][found.name].append(index)
    ours: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for index, (thread, name) in enumerate(zip(columns[_THREAD].tolist(), called, strict=True)):
        ours[thread][name].append(index)
    for mine in sorted(ours.values(), key=lambda by_name: -sum(map(len, by_name.values()))):
        if not theirs:
            break

        def common(thread: int, mine: dict[str, list[int]] = mine) -> int:
            return sum(len(v) for k, v in mine.items() if len(theirs[thread].get(k, ())) == len(v))

        other = max(sorted(theirs), key=common)
        if not common(other):
            continue
        for name, indices in mine.items():
            if len(theirs[other].get(name, ())) == len(indices):
                node[indices] = theirs[other][name]
        del theirs[other]
    return node


def _framework(
    columns: IntArray, called: Texts, node: IntArray, execution: ExecutionTrace, names: Names
) -> FrameworkCalls:
    rows = []
    for index in np.flatnonzero(node >= 0).tolist():
        found = execution.nodes[node[index]]
        if not found.inputs and not found.outputs:
            continue
        rows.append(
            (
                *columns[:3, index].tolist(),
                names.code(str(called[index])),
                names.code(shapes_text(tensor.shape for tensor in found.inputs)),
                names.code(json.dumps([tensor.dtype for tensor in found.inputs])),
                names.code(shapes_text(tensor.shape for tensor in found.outputs)),
            )
        )
    return FrameworkCalls(*np.array(rows, dtype=np.int64).reshape(-1, 7).T)


def _with_collectives(
    trace: GpuRecording, columns: IntArray, node: IntArray, execution: ExecutionTrace
) -> tuple[GpuRecording, int]:
    """Groups and sizes of communication kernels that do not tell them themselves."""
    gpu, calls = trace.gpu, trace.calls
    silent = np.flatnonzero(is_communication(trace.names)[gpu.name] & (gpu.kind == 0) & (gpu.meta < 0))
    call_of = {int(c): i for i, c in reversed(list(enumerate(calls.correlation.tolist()))) if c > 0}
    launching = np.array([call_of.get(c, -1) for c in gpu.correlation[silent].tolist()], dtype=np.int64)
    silent, launching = silent[launching >= 0], launching[launching >= 0]
    by_id = {found.id: found for found in execution.nodes}
    paired = np.flatnonzero(node >= 0)
    around = innermost(
        calls.start_ps[launching], calls.thread[launching],
        columns[_START, paired], columns[_END, paired], columns[_THREAD, paired],
    )  # fmt: skip
    meta: dict[CollectiveMeta, int] = {known: i for i, known in enumerate(trace.meta)}
    number = gpu.meta.copy()
    found = 0
    for activity, call in zip(
        silent[around >= 0].tolist(), paired[around[around >= 0]].tolist(), strict=True
    ):
        described = collective_of(execution.nodes[node[call]], by_id, execution)
        if described is not None:
            number[activity] = meta.setdefault(described, len(meta))
            found += 1
    return replace(trace, gpu=replace(gpu, meta=number), meta=tuple(meta)), found


#: Calls whose first argument is what they write, and whose second is what they read.
_OUTPUT_FIRST = ("allgather", "all_gather", "reduce_scatter", "alltoall", "all_to_all", "gather", "scatter")


def collective_of(
    node: ObservedNode, by_id: dict[int, ObservedNode], execution: ExecutionTrace
) -> CollectiveMeta | None:
    """What a communication call and the calls around it say of the collective; None when nothing."""
    chain: list[ObservedNode] = []
    at: ObservedNode | None = node
    for _ in range(8):  # a call is that deep at most; roots are their own parents
        if at is not None and at.name.startswith((FRAMEWORK_CALLS, *LIBRARY_CALLS)):
            chain.append(at)
        at = by_id.get(at.parent) if at is not None else None
    if not chain:
        return None
    text = next((n.text for n in chain if n.text), {})
    call = next((n for n in chain if n.name.startswith(FRAMEWORK_CALLS)), chain[0])
    name = str(text.get("collective_name") or next((n.name for n in chain if ":" in n.name), call.name))
    name = name.split(":")[-1].strip("_")
    tensors = call.inputs or chain[0].inputs
    first, rest = tensors[: call.first_inputs or len(tensors)], tensors[call.first_inputs or len(tensors) :]
    read = rest if rest and any(word in call.name.lower() for word in _OUTPUT_FIRST) else first
    elements = {"in": sum(t.elements for t in read), "out": sum(t.elements for t in first)}
    for side in elements:
        told = text.get(f"{side}_msg_nelems")
        if type(told) is int and told > 0:
            elements[side] = told
    group = str(text.get("pg_name", ""))
    ranks = execution.groups.get(group, ())
    size = text.get("pg_size", text.get("group_size", len(ranks) or -1))
    return CollectiveMeta(
        name, group, str(list(ranks)) if ranks else "",
        str(text.get("dtype") or (read[0].dtype if read else "")),
        elements["in"], elements["out"], size if type(size) is int else -1,
    )  # fmt: skip
