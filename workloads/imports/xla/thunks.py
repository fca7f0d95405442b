"""Thunk traces of XLA: what each rank's executable ran, step by step, and the HLO module behind it.

One JSON object: ``ranks`` ``{name: [{"module_cpu_start_us", "module_cpu_dur_us", "thunks"}]}``, a thunk being
``{"op", "cs", "ce", "gs", "ge", "n"}``: the instruction, its launch on the host and its ``n`` kernels on the
GPU, us; ``hlo`` lists computations of instructions with operands, control dependencies and sizes.

Thunks become what other profilers record: launches, kernels on streams, event waits.  A collective runs on a
stream of its own and waits for what was launched before it; the first thunk that needs its result waits for
the collective.  Before some thunks (custom calls) the host waits for the GPU, which no record says: see
:func:`_host_waits`.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from simcore.errors import InputError
from simcore.outside import quoted
from simcore.records import dataclass
from workloads.imports.files import TraceFile, read_object
from workloads.imports.job import ImportedJob
from workloads.imports.op_columns import Names
from workloads.imports.recorded import MAX_SPAN_S, Step
from workloads.imports.recording.columns import (
    UNKNOWN,
    Activities,
    ApiCalls,
    CollectiveMeta,
    GpuRecording,
    SyncRecord,
)
from workloads.imports.recording.job import import_recordings
from workloads.imports.xla.hlo import HloCollective, HloModule

_PS_PER_NS = 1000
_COMPUTE, _COMMUNICATION = 0, 100  # first stream numbers
_LONG_GAP_NS = 100_000  # longer than the host takes between launches
_WAKE_NS = 40_000  # by which a waiting host goes on
_MOSTLY = 0.8
_MAX_US = 1e17  # no clock of a computer shows more


def is_xla_trace(_source: TraceFile, head: bytes) -> bool:
    """Whether a file begins like such a trace."""
    return head.lstrip()[:1] == b"{" and b'"thunks"' in head and b'"ranks"' in head


def import_xla(sources: Sequence[TraceFile], skip_bad: bool, gaps: str) -> ImportedJob:
    """Import thunk traces; one file may hold several ranks.  Errors: InputError as :func:`read_xla`."""
    return import_recordings(sources, read_xla, skip_bad=skip_bad, gaps=gaps, origin="xla")


@dataclass(frozen=True)
class _Thunk:
    op: str
    launch_ns: int
    launched_ns: int
    start_ns: int
    end_ns: int


def read_xla(source: TraceFile) -> list[GpuRecording]:
    """The ranks of one file as recordings.

    Errors: InputError with file, rank, step, thunk and reason: no JSON, no thunks, an end before its start,
    two ranks of one number.
    """
    content = read_object(source, "ranks and their thunks")
    ranks = content.get("ranks")
    if not isinstance(ranks, dict) or not ranks:
        raise InputError(f"{source.label}: has no ranks")
    module = HloModule(source.label, content.get("hlo", []))
    found: dict[int, str] = {}
    traces = []
    for order, (name, steps) in enumerate(ranks.items()):
        named = re.search(r"(\d{1,6})$", name)
        number = int(named.group(1)) if named else order
        if number in found:
            raise InputError(f"{source.label}: {name!r} and {found[number]!r} are both of rank {number}")
        found[number] = name
        if not isinstance(steps, list) or not steps:
            raise InputError(f"{source.label}: {name}: has no steps")
        traces.append(_rank(source.label, name, number, len(ranks), steps, module))
    return traces


def _rank(
    label: str, name: str, number: int, world_size: int, steps: list[Any], module: HloModule
) -> GpuRecording:
    thunks: list[_Thunk] = []
    spans: list[tuple[int, int]] = []
    for index, entry in enumerate(steps):
        where = f"{label}: {name}: step {index}"
        if not isinstance(entry, dict) or not isinstance(entry.get("thunks"), list) or not entry["thunks"]:
            raise InputError(f"{where}: has no thunks")
        begin = _time_ns(where, entry, "module_cpu_start_us") if "module_cpu_start_us" in entry else None
        own: list[_Thunk] = []
        for place, thunk in enumerate(entry["thunks"]):
            before = own[-1].launched_ns if own else begin
            own.append(_thunk(f"{where}: thunk {place}", thunk, before))
        first = min(thunk.launch_ns for thunk in own)
        first = min(first, begin) if begin is not None else first
        _check_span(where, own, spans[0][0] if spans else first)
        last = max(thunk.launched_ns for thunk in own)
        if spans and first <= spans[-1][0]:
            raise InputError(f"{where}: begins before step {index - 1}")
        if spans and first < spans[-1][1]:  # a straggling thread of the step before still launched
            spans[-1] = spans[-1][0], first
        spans.append((first, last + 1))
        thunks += own
    thunks.sort(key=lambda thunk: thunk.launch_ns)
    origin = min(spans[0][0], min(thunk.start_ns for thunk in thunks)) // 1000 * 1000
    marks = tuple(
        Step(index, (begin - origin) * _PS_PER_NS, (end - origin) * _PS_PER_NS)
        for index, (begin, end) in enumerate(spans)
    )
    return _Recorder(f"{label}: {name}", number, world_size, origin, module).trace(thunks, marks)


class _Recorder:
    """Writes one rank's thunks as launches, kernels and event waits."""

    def __init__(self, label: str, number: int, world_size: int, origin_ns: int, module: HloModule) -> None:
        self._label, self._number, self._world = label, number, world_size
        self._origin_ns = origin_ns
        self._module = module
        self._names = Names()
        self._meta: dict[CollectiveMeta, int] = {}
        self._calls: list[tuple[int, int, int, int]] = []  # start, end, name, correlation
        self._syncs: dict[int, SyncRecord] = {}
        self._correlation = 0

    def trace(self, thunks: list[_Thunk], steps: tuple[Step, ...]) -> GpuRecording:
        """The recording."""
        ops = frozenset(thunk.op for thunk in thunks)
        known = {op: self._module.collective(op, ops) for op in ops}
        titles = {op: self._module.title(op) for op in ops}
        moved = {op: self._module.moved(op) for op in ops}
        streams = _streams(thunks, known)
        rows: list[tuple[int, ...]] = []
        waiting: list[tuple[frozenset[str], int, int]] = []  # users, stream, event of running collectives
        host_waits = _host_waits(thunks)
        for place, (thunk, stream) in enumerate(zip(thunks, streams, strict=True)):
            if place in host_waits:
                self._host_wait(thunks[place - 1].launched_ns, thunk.launch_ns, streams[place - 1])
            at = (thunk.launch_ns - self._origin_ns) * _PS_PER_NS
            collective = known[thunk.op]
            if collective is None:
                for users, source, event in [entry for entry in waiting if thunk.op in entry[0]]:
                    self._wait(at, stream, source, event)
                    waiting.remove((users, source, event))
            else:
                self._wait(at, stream, _COMPUTE, UNKNOWN)
            launch = self._call(at, (thunk.launched_ns - self._origin_ns) * _PS_PER_NS, "launch of a thunk")
            meta = UNKNOWN
            if collective is not None:
                meta = self._meta.setdefault(self._described(collective), len(self._meta))
                event = self._call(at + 1, at + 1, "cudaEventRecord")
                waiting.append((collective.users, stream, event))
            start, end = ((time - self._origin_ns) * _PS_PER_NS for time in (thunk.start_ns, thunk.end_ns))
            size = collective.num_bytes if collective is not None else 0
            rows.append(
                (
                    start, end, 0, 0, stream, launch, self._names.code(titles[thunk.op]), max(0, size), meta,
                    len(rows), *moved[thunk.op],
                )
            )  # fmt: skip
        columns = np.array(rows, dtype=np.int64).T.copy()
        self._calls.sort(key=lambda call: call[0])
        calls = np.array(self._calls, dtype=np.int64).T
        gpu = replace(Activities(*columns[:10]), moved=columns[10:])
        return GpuRecording(
            label=self._label, names=self._names.values(), gpu=gpu,
            calls=ApiCalls(calls[0], calls[1], np.zeros(calls.shape[1], dtype=np.int64), calls[2], calls[3]),
            origin_us=self._origin_ns // 1000, rank=self._number, world_size=self._world, syncs=self._syncs,
            meta=tuple(self._meta), steps=steps, inferred_host_waits=len(host_waits),
        )  # fmt: skip

    def _host_wait(self, begin_ns: int, end_ns: int, stream: int) -> None:
        """The host waits for all that was launched on ``stream``."""
        begin_ps, end_ps = ((time - self._origin_ns) * _PS_PER_NS for time in (begin_ns, end_ns))
        number = self._call(
            begin_ps + 1, end_ps - 2, "cudaStreamSynchronize"
        )  # after its launch, before waits
        self._syncs[number] = SyncRecord("Stream Sync", number, stream, UNKNOWN, UNKNOWN)

    def _call(self, start_ps: int, end_ps: int, name: str) -> int:
        """Note a call of the host; its correlation id."""
        self._correlation += 1
        self._calls.append((start_ps, end_ps, self._names.code(name), self._correlation))
        return self._correlation

    def _wait(self, before_ps: int, stream: int, source: int, event: int) -> None:
        """What is launched at ``before_ps`` on ``stream`` waits for ``source``, as far as ``event``."""
        number = self._call(before_ps - 1, before_ps - 1, "cudaStreamWaitEvent")
        self._syncs[number] = SyncRecord("Stream Wait Event", number, stream, source, event)

    def _described(self, collective: HloCollective) -> CollectiveMeta:
        own = next((group for group in collective.groups if self._number in group), ())
        ranks = own or tuple(range(self._world))
        return CollectiveMeta(
            collective=collective.kind, group="xla", group_ranks=json.dumps(list(ranks)), dtype="byte",
            in_elements=collective.num_bytes, out_elements=collective.num_bytes, group_size=len(ranks),
        )  # fmt: skip


def _check_span(where: str, thunks: list[_Thunk], begin_ns: int) -> None:
    """InputError for a thunk more than a week from the rank's begin."""
    for place, thunk in enumerate(thunks):
        for time_ns in (thunk.launch_ns, thunk.launched_ns, thunk.start_ns, thunk.end_ns):
            if abs(time_ns - begin_ns) > MAX_SPAN_S * 10**9:
                days = abs(time_ns - begin_ns) / 8.64e13
                raise InputError(
                    f"{where}: thunk {place} ({thunk.op}): {days:.3g} days from the rank's first call"
                )


def _host_waits(thunks: list[_Thunk]) -> frozenset[int]:
    """Places of thunks before whose launch the host waits for the one before.

    A long gap of the host that ends just after the GPU is done with what was launched last is such a wait,
    and no work of the host.  An instruction that mostly waits so where the gap is long does so always, unless
    a launch of it came before the GPU was done.
    """
    gaps: dict[str, list[int]] = defaultdict(list)
    for place in range(1, len(thunks)):
        gaps[thunks[place].op].append(place)
    found: set[int] = set()
    for places in gaps.values():
        ahead = [thunks[place].launch_ns - thunks[place - 1].end_ns for place in places]
        length = [thunks[place].launch_ns - thunks[place - 1].launched_ns for place in places]
        long = [late for late, gap in zip(ahead, length, strict=True) if gap > _LONG_GAP_NS]
        waits = sum(0 <= late <= _WAKE_NS for late in long)
        if waits and waits >= _MOSTLY * len(long) and min(ahead) >= 0:
            found.update(places)
    return frozenset(found)


def _streams(thunks: list[_Thunk], known: dict[str, HloCollective | None]) -> list[int]:
    """Stream of each thunk: one for computes, one for collectives, more where they ran at the same time."""
    free: dict[int, int] = {}
    streams = []
    for thunk in thunks:
        stream = _COMPUTE if known[thunk.op] is None else _COMMUNICATION
        while free.get(stream, thunk.start_ns) > thunk.start_ns:
            stream += 1
        free[stream] = thunk.end_ns
        streams.append(stream)
    return streams


def _thunk(where: str, entry: Any, before_ns: int | None) -> _Thunk:
    """A thunk; one whose launch is not recorded (of a command buffer) was launched with the one before."""
    if not isinstance(entry, dict) or not isinstance(entry.get("op"), str):
        raise InputError(f"{where}: has no op")
    start, end = (_time_ns(where, entry, key) for key in ("gs", "ge"))
    if entry.get("cs") is None and entry.get("ce") is None:
        launch = launched = min(start, before_ns) if before_ns is not None else start
    else:
        launch, launched = (_time_ns(where, entry, key) for key in ("cs", "ce"))
    if end < start or launched < launch:
        raise InputError(f"{where} ({entry['op']}): ends before it starts")
    return _Thunk(entry["op"], launch, launched, start, end)


def _time_ns(where: str, entry: dict[str, Any], key: str) -> int:
    value = entry.get(key)
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or math.isnan(value)
        or abs(value) > _MAX_US
    ):
        raise InputError(f"{where}: {key} is {quoted(value)}, no time in us")
    return round(value * 1000)
