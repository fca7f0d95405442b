"""The host's side of a recording: when launches reached the GPU and where the host blocked.

Threads that hand over to each other, as forward and backward do, are one (:mod:`workloads.imports.threads`).
Times of launches are kept as recorded; what a blocking call waited for is found, so that the wait is resolved
when the graph runs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from simcore.graph.ops import IntArray
from simcore.units import PS_PER_US
from workloads.imports.rank_ops import BoolArray, RankOps
from workloads.imports.threads import Threads
from workloads.imports.waits import WAKE_PS, Waits

_DEFAULT_LATENCY_PS = 8 * PS_PER_US
_IDLE_PS = 50 * PS_PER_US  # a stream that was idle for this long waited for the launch alone
_MAX_LATENCY_PS = 100 * PS_PER_US  # a longer way from launch call to start has another reason
_FULL_QUEUE = 256  # launches outstanding before a slow launch call is taken for a full queue
_SLOW_CALL_PS = 50 * PS_PER_US

_STREAM_SYNC = re.compile(r"^(cuda|hip|cu)StreamSynchronize", re.IGNORECASE)
_DEVICE_SYNC = re.compile(
    r"^((cuda|hip)DeviceSynchronize|cuCtxSynchronize|(cuda|hip)Free(Host)?$)", re.IGNORECASE
)
_EVENT_SYNC = re.compile(r"^(cuda|hip|cu)EventSynchronize", re.IGNORECASE)
_COPY = re.compile(r"^(cuda|hip|cu)Memcpy", re.IGNORECASE)
_ASYNC_COPY = re.compile(r"Async", re.IGNORECASE)


def launch_latency(ops: RankOps) -> int:
    """Median time from a launch call to the start on a stream that was idle, ps."""
    launched = ops.call >= 0
    called = np.where(launched, ops.trace.calls.start_ps[ops.call] if len(ops.trace.calls) else 0, 0)
    latency = ops.start_ps - called
    idle = launched & (called > ops.free_from() + _IDLE_PS) & (latency > 0) & (latency < _MAX_LATENCY_PS)
    return int(np.median(latency[idle])) if idle.any() else _DEFAULT_LATENCY_PS


@dataclass(frozen=True)
class LaunchTimes:
    """Per op: when its launch reached the GPU, and the gap that then still passed before it started, ps.

    ``host_bound``: the launch decided when it started.  ``unexplained``: the gap is too long for a device
    that starts one kernel after another; the recording does not say what the op waited for.
    ``unexplained_ps`` is the sum of those gaps as recorded, ``unexplained_from_ps`` when each began.
    """

    reached_ps: IntArray
    gap_ps: IntArray
    host_bound: BoolArray
    unexplained: BoolArray
    unexplained_ps: int
    unexplained_from_ps: IntArray


def launch_times(ops: RankOps, waits: Waits, latency_ps: int, *, typical: bool = False) -> LaunchTimes:
    """Explain each start by launch, stream and waits; what is left over is the gap.

    With ``typical`` every launch takes the rank's typical latency and every op its typical gap, and what is
    unexplained is left out: the replay then shows how much of the step the structure explains.  Ops whose
    launch was not recorded keep their unexplained gaps: it is the host that would explain them.
    """
    free = np.where(ops.before >= 0, ops.end_ps[ops.before], -(1 << 62))
    ready = np.maximum(free, waits.latest_end(ops))
    called = ops.call >= 0
    natural = ops.issue_ps + np.where(called, latency_ps, 0)
    returned = np.where(called, ops.trace.calls.end_ps[ops.call] if len(ops.trace.calls) else 0, 0)
    # A slow call (loading a module, staging pageable memory) launches at some time before it returns.
    slow = called & (returned - ops.issue_ps > _SLOW_CALL_PS) & (ops.start_ps > ready + WAKE_PS)
    near = ops.start_ps - np.where(slow, returned, ops.issue_ps) <= _MAX_LATENCY_PS
    host_bound = called & near & ((natural > ready) | slow)
    reached = np.where(host_bound, ops.start_ps, np.minimum(natural, ops.start_ps))
    for _ in range(2):  # along lanes and waits; twice settles all but chains of ties
        np.maximum.at(reached, waits.target, reached[waits.source])
        for lane in range(len(ops.lane_names)):
            members = ops.in_lane(lane)
            reached[members] = np.maximum.accumulate(reached[members])
    reached = np.minimum(reached, ops.start_ps)
    gap = np.maximum(0, ops.start_ps - np.maximum(ready, reached))
    unexplained = gap > WAKE_PS
    unexplained_ps = int(gap[unexplained].sum())
    since = (ops.start_ps - gap)[unexplained]
    if typical:
        behind = ~host_bound & ~unexplained
        usual = int(np.median(gap[behind])) if behind.any() else 0
        reached = np.where(slow & host_bound, returned, natural)
        for lane in range(len(ops.lane_names)):
            members = ops.in_lane(lane)
            reached[members] = np.maximum.accumulate(reached[members])
        gap = np.where(host_bound, 0, np.where(unexplained & ~called, gap, usual))
    return LaunchTimes(reached, gap, host_bound, unexplained, unexplained_ps, since)


@dataclass(frozen=True)
class Block:
    """A host thread blocks at ``start_ps``, until ``waits_for`` have ended, and goes on at ``end_ps``."""

    start_ps: int
    end_ps: int
    waits_for: tuple[int, ...]
    name: str
    thread: int = 0


@dataclass(frozen=True)
class HostBlocks:
    """Where the host blocked, sorted; ``concurrent`` counts blocking calls beside which others launched."""

    blocks: list[Block]
    inferred: int
    concurrent: int
    queue_full: int


def host_blocks(ops: RankOps, threads: Threads) -> HostBlocks:
    """Blocking calls and what each waited for; the recording decides where no record does."""
    trace, calls = ops.trace, ops.trace.calls
    kinds = [_blocking_kind(name) for name in trace.names]
    finder = _Finder(ops, threads)
    blocks: list[Block] = []
    inferred = concurrent = queue_full = 0
    launched_by: dict[int, list[int]] = {}
    for op in np.flatnonzero(ops.call >= 0).tolist():
        launched_by.setdefault(int(ops.call[op]), []).append(op)
    relevant = np.array([bool(kind) for kind in kinds], dtype=np.bool_)[calls.name] if len(calls) else ()
    for call in np.flatnonzero(relevant).tolist():
        kind = kinds[int(calls.name[call])]
        begin, end = int(calls.start_ps[call]), int(calls.end_ps[call])
        own = launched_by.get(call, [])
        name = trace.names[int(calls.name[call])]
        if kind == "copy":
            if not own or ops.end_ps[own[-1]] > end + trace.resolution_ps or not _blocks(ops, own[-1], name):
                continue
            targets, guessed = [own[-1]], False
            begin += 1  # after its own launch
        else:
            targets, guessed = finder.targets(kind, call)
        if not targets:
            continue
        until = max(int(ops.end_ps[target]) for target in targets)
        thread = int(calls.thread[call])
        if finder.launches_between(begin, until, thread):
            concurrent += 1
            continue
        inferred += guessed
        blocks.append(Block(begin, end, tuple(targets), name, threads.of(thread)))
    for block in _full_queue(ops, finder):
        queue_full += 1
        blocks.append(block)
    blocks.sort(key=lambda block: block.start_ps)
    return HostBlocks(blocks, inferred, concurrent, queue_full)


def _blocking_kind(name: str) -> str:
    for kind, pattern in (
        ("stream", _STREAM_SYNC), ("device", _DEVICE_SYNC), ("event", _EVENT_SYNC), ("copy", _COPY),
    ):  # fmt: skip
        if pattern.match(name):
            return kind
    return ""


def _blocks(ops: RankOps, op: int, call_name: str) -> bool:
    """Whether a copy call returns only when the copy is done: no Async in its name, or pageable memory."""
    copy = ops.trace.names[int(ops.trace.gpu.name[ops.row[op]])]
    return not _ASYNC_COPY.search(call_name) or "pageable" in copy.lower()


class _Finder:
    """Finds what a blocking call waited for."""

    def __init__(self, ops: RankOps, threads: Threads) -> None:
        self._ops = ops
        self.threads = threads
        self._by_lane = [ops.in_lane(lane) for lane in range(len(ops.lane_names))]
        self._issue = [ops.issue_ps[members] for members in self._by_lane]
        calls = ops.trace.calls
        self._began = {int(c): int(t) for c, t in zip(calls.correlation, calls.start_ps, strict=True)}
        launched = np.unique(ops.call[ops.call >= 0])
        self._launch_ps, self._launch_thread = calls.start_ps[launched], calls.thread[launched]

    def last_issued(self, lane: int, time: int) -> int:
        """The last op of ``lane`` issued before ``time``; -1: none."""
        place = int(np.searchsorted(self._issue[lane], time))
        return int(self._by_lane[lane][place - 1]) if place else -1

    def launches_between(self, begin: int, end: int, thread: int) -> bool:
        """Whether another thread, one that hands over to this one, launched while this one waited."""
        lo, hi = np.searchsorted(self._launch_ps, [begin + PS_PER_US, end - PS_PER_US])
        others = np.unique(self._launch_thread[lo:hi])
        own = self.threads.of(thread)
        return any(other != thread and self.threads.of(other) == own for other in others.tolist())

    def targets(self, kind: str, call: int) -> tuple[list[int], bool]:
        """Ops that the call waited for, and whether that is a guess."""
        ops, calls = self._ops, self._ops.trace.calls
        begin, end = int(calls.start_ps[call]), int(calls.end_ps[call])
        limit = end + self._ops.trace.resolution_ps
        record = ops.trace.syncs.get(int(calls.correlation[call]))
        lanes = range(len(ops.lane_names))
        guess = False
        if kind == "stream" and record is not None and record.stream >= 0:
            chosen = ops.lanes_of_stream(record.stream)
        elif kind == "event" and record is not None and record.source_stream >= 0:
            chosen = ops.lanes_of_stream(record.source_stream)
            begin = self._began.get(record.record_correlation, begin)
        else:
            chosen, guess = list(lanes), kind != "device"
        last = [op for lane in chosen if (op := self.last_issued(lane, begin)) >= 0]
        last = [op for op in last if ops.end_ps[op] <= limit]
        if not guess or not last:
            return last, guess
        # Which stream or event is not recorded: what ended last while the call lasted, if it returned then.
        latest = max(last, key=lambda op: int(ops.end_ps[op]))
        woken = ops.end_ps[latest] >= begin and end - ops.end_ps[latest] <= 5 * WAKE_PS
        return ([latest] if woken else []), True


def _full_queue(ops: RankOps, finder: _Finder) -> list[Block]:
    """Launch calls that waited for room in the launch queue, as blocks until the op that made room ended."""
    calls = ops.trace.calls
    launched = np.unique(ops.call[ops.call >= 0])
    if not len(launched):
        return []
    length = calls.end_ps[launched] - calls.start_ps[launched]
    slow = launched[length > max(_SLOW_CALL_PS, 10 * int(np.median(length)))]
    issued = np.sort(ops.issue_ps)
    ended = np.sort(ops.end_ps)
    by_end = np.argsort(ops.end_ps, kind="stable")
    found = []
    for call in slow.tolist():
        begin, end = int(calls.start_ps[call]), int(calls.end_ps[call])
        outstanding = int(np.searchsorted(issued, begin)) - int(np.searchsorted(ended, begin))
        room = int(by_end[int(np.searchsorted(ended, end, side="right")) - 1])
        if outstanding < _FULL_QUEUE or ops.end_ps[room] <= begin or ops.issue_ps[room] >= begin:
            continue
        if not finder.launches_between(begin, int(ops.end_ps[room]), int(calls.thread[call])):
            thread = finder.threads.of(int(calls.thread[call]))
            found.append(Block(begin - 1, end, (room,), "launch queue is full", thread))
    return found
