"""GPU activities of one rank as a host issued them: stream order, and the call that launched each."""

from __future__ import annotations

import re
from dataclasses import field
from functools import cached_property

import numpy as np

from simcore.errors import InputError
from simcore.graph.ops import IntArray, told_apart
from simcore.records import dataclass
from simcore.units import PS_PER_US, format_time
from workloads.imports.collective_names import collective_kind, is_communication
from workloads.imports.recorded import BoolArray
from workloads.imports.recording.columns import CollectiveMeta, GpuRecording

_TRIM_PS = 5 * PS_PER_US  # time stamps of neighbours disagree by up to this; no kernel really overlapped
_REAL_OVERLAP = 0.5  # of the shorter op; less is taken for clocks that drift, and replayed as it stands
#: Calls that launch one kernel, of CUDA's and HIP's runtime and driver.
_LAUNCH = re.compile(r"^(cu|hip)\w*Launch\w*Kernel", re.IGNORECASE)
#: Launches after which kernels of one stream may overlap: branches of a CUDA graph, programmatic dependent
#: launch (an attribute of the extended launch calls), whose prologue runs beside its predecessor, and all of
#: other devices than NVIDIA's, whose queues need not be in order.
_MAY_OVERLAP = re.compile(r"GraphLaunch|LaunchKernelEx|^(?!cu)", re.IGNORECASE)


@dataclass(frozen=True)
class RankOps:
    """One rank's GPU ops, sorted by start; all columns have one entry per op.

    ``row`` is the activity in the trace, ``lane`` its stream (or, where ops of one stream overlap, one of
    several lanes of it: ``lane_names``), ``before`` the op before it in its lane (-1: none).  ``call`` is
    the launching call (-1: not recorded); ``issue_ps`` when that call began, made monotone along each lane
    (an op without a call is issued no later than the next one with, and before all if none before has one).
    ``chained`` are pairs (earlier, later)
    of ops of one stream in different lanes.
    """

    trace: GpuRecording
    row: IntArray
    start_ps: IntArray
    end_ps: IntArray
    lane: IntArray
    lane_names: tuple[str, ...]
    stream_of_lane: tuple[int, ...]
    before: IntArray
    call: IntArray
    issue_ps: IntArray
    is_comm: BoolArray
    chained: list[tuple[int, int]] = field(default_factory=list)
    trimmed: int = 0

    def __len__(self) -> int:
        return len(self.row)

    def name(self, op: int) -> str:
        """The name of an op."""
        return self.trace.names[int(self.trace.gpu.name[self.row[op]])]

    def meta(self, op: int) -> CollectiveMeta | None:
        """What a communication kernel says about itself, if anything."""
        number = int(self.trace.gpu.meta[self.row[op]])
        return self.trace.meta[number] if number >= 0 else None

    def collective(self, op: int) -> str:
        """The collective that a communication kernel carries out, by NCCL's metadata or its name."""
        meta = self.meta(op)
        return collective_kind(meta.collective if meta is not None else "", self.name(op))

    def in_lane(self, lane: int) -> IntArray:
        """Ops of a lane, in order."""
        return np.flatnonzero(self.lane == lane)

    @cached_property
    def launching(self) -> IntArray:
        """The calls that launched anything, sorted."""
        launched = np.zeros(len(self.trace.calls), dtype=np.bool_)
        launched[self.call[self.call >= 0]] = True
        return np.flatnonzero(launched)

    def lanes_of_stream(self, stream: int) -> list[int]:
        """Lanes of a recorded stream number."""
        return [lane for lane, number in enumerate(self.stream_of_lane) if number == stream]

    def launched_ps(self) -> IntArray:
        """When the call that launched each op began; before all else where it was not recorded."""
        calls = self.trace.calls.start_ps
        if not len(calls):
            return np.full(len(self), np.iinfo(np.int64).min)
        return np.where(self.call >= 0, calls[np.maximum(self.call, 0)], np.iinfo(np.int64).min)

    def launches(self) -> tuple[int, IntArray]:
        """How many calls launched a kernel each, and the starts of those without one in the recording, ps."""
        calls, gpu = self.trace.calls, self.trace.gpu
        named = np.array([_LAUNCH.match(name) is not None for name in self.trace.names], dtype=np.bool_)
        launching = named[calls.name]
        lost = launching & (calls.correlation > 0) & ~np.isin(calls.correlation, gpu.correlation)
        return int(launching.sum()), calls.start_ps[lost]

    def free_from(self) -> IntArray:
        """When each op's lane is free for it: the end of the op before, or the first start of all."""
        first = int(self.start_ps[0])
        return np.where(self.before >= 0, self.end_ps[self.before], first)


def rank_ops(trace: GpuRecording) -> RankOps:
    """Order the activities of ``trace``.

    Errors: InputError when kernels that follow one another on a stream were recorded as overlapping.
    """
    gpu = trace.gpu
    row = np.lexsort((gpu.event, gpu.end_ps, gpu.start_ps))
    start, end = gpu.start_ps[row], gpu.end_ps[row].copy()
    call = _launching_calls(trace)[row]
    device = gpu.device[row]
    (devices, on_device), (streams, on_stream) = told_apart(device), told_apart(gpu.stream[row])
    pairs, lane = told_apart(on_device * len(streams) + on_stream)
    of_pair, numbers = np.divmod(pairs, len(streams))
    numbers = streams[numbers].tolist()
    devices_of = devices[of_pair].tolist()
    names = [f"{d}:{s}" if len(devices) > 1 else str(s) for d, s in zip(devices_of, numbers, strict=True)]
    chained: list[tuple[int, int]] = []
    trimmed = 0
    for number in range(len(names)):
        ops = np.flatnonzero(lane == number)
        over = end[ops[:-1]] - start[ops[1:]]
        slight = (over > 0) & (over <= _TRIM_PS)
        end[ops[:-1][slight]] = np.maximum(start[ops[1:][slight]], start[ops[:-1][slight]])
        trimmed += int(slight.sum())
        if (np.maximum.accumulate(end[ops])[:-1] > start[ops[1:]]).any():
            _check_overlaps(trace, names[number], row, ops, call, start, end)
            lanes, links = _split(ops, start, end)
            chained += links
            for extra in range(1, int(lanes.max()) + 1):
                lane[ops[lanes == extra]] = len(names)
                names.append(f"{names[number]}/{extra}")
                numbers.append(numbers[number])
    before = np.full(len(row), -1, dtype=np.int64)
    issue = np.where(call >= 0, trace.calls.start_ps[call] if len(trace.calls) else 0, np.iinfo(np.int64).max)
    first = min(int(start[0]), int(trace.calls.start_ps[0]) if len(trace.calls) else int(start[0]))
    for number in range(len(names)):
        ops = np.flatnonzero(lane == number)
        before[ops[1:]] = ops[:-1]
        # Without a call: issued no later than the next op with one, and at the latest when it starts; before
        # the first with one, before what is recorded: no wait of the host held it up.
        known = np.minimum(np.minimum.accumulate(issue[ops][::-1])[::-1], start[ops])
        known[~np.maximum.accumulate(call[ops] >= 0)] = first
        issue[ops] = np.minimum(
            np.maximum.accumulate(np.where(call[ops] >= 0, issue[ops], known)), start[ops]
        )
        issue[ops] = np.maximum.accumulate(issue[ops])
    return RankOps(
        trace, row, start, end, lane, tuple(names), tuple(numbers), before, call, issue,
        (is_communication(trace.names)[gpu.name[row]] | (gpu.meta[row] >= 0)) & (gpu.kind[row] == 0),
        chained, trimmed,
    )  # fmt: skip


def _launching_calls(trace: GpuRecording) -> IntArray:
    """The call that launched each activity, by correlation; one graph launch may launch many."""
    calls, wanted = trace.calls, trace.gpu.correlation
    known = np.flatnonzero(calls.correlation > 0)
    if not len(known):
        return np.full(len(wanted), -1, dtype=np.int64)
    # Calls are sorted by start: of a runtime call and the driver call inside it, the first is the outer.
    numbers, first = np.unique(calls.correlation[known], return_index=True)
    at = np.minimum(np.searchsorted(numbers, wanted), len(numbers) - 1)
    return np.where((numbers[at] == wanted) & (wanted > 0), known[first[at]], -1)


def _check_overlaps(
    trace: GpuRecording,
    stream: str,
    row: IntArray,
    ops: IntArray,
    call: IntArray,
    start: IntArray,
    end: IntArray,
) -> None:
    """InputError for two ops of a stream that overlap although the later must wait for the earlier."""
    calls = trace.calls
    latest = ops[0]
    for op in ops[1:].tolist():
        by = int(call[op])
        may = by < 0 or _MAY_OVERLAP.search(trace.names[int(calls.name[by])])
        overlap = int(min(end[latest], end[op]) - start[op])
        shorter = int(min(end[latest] - start[latest], end[op] - start[op]))
        if overlap > max(_TRIM_PS, shorter * _REAL_OVERLAP) and not may:
            first, second = (int(trace.gpu.event[row[i]]) for i in (latest, op))
            raise InputError(
                f"{trace.label}: events {first} and {second} overlap by {format_time(overlap)} on stream"
                f" {stream}, where"
                f" kernels run one after the other; the recording contradicts itself"
            )
        if end[op] > end[latest]:
            latest = op


def _split(ops: IntArray, start: IntArray, end: IntArray) -> tuple[IntArray, list[tuple[int, int]]]:
    """Lanes of a stream whose ops overlap: the first that is free; and what each op came after elsewhere."""
    lane_of = np.zeros(len(ops), dtype=np.int64)
    lanes: list[list[int]] = []
    links: list[tuple[int, int]] = []
    for index, op in enumerate(ops.tolist()):
        begins = int(start[op])
        own = next((k for k, held in enumerate(lanes) if end[held[-1]] <= begins), len(lanes))
        if own == len(lanes):
            lanes.append([])
        for k, held in enumerate(lanes):
            if k != own:
                links += [(other, op) for other in held[:-4:-1] if end[other] <= begins][:1]
        lanes[own].append(op)
        lane_of[index] = own
    return lane_of, links
