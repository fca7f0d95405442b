"""The host's side of a recording: which threads are one, and where they blocked on what.

A forward thread sits in ``backward()`` while autograd's thread launches: their calls alternate in long runs
and never overlap, so together they are one thread.  A thread that prefetches data or serves another stream
makes calls during the others' calls; it is a thread of its own.
"""

from __future__ import annotations

import re

import numpy as np

from simcore.graph.ops import IntArray
from simcore.records import dataclass
from simcore.units import PS_PER_US
from workloads.imports.recording.rank_ops import RankOps
from workloads.imports.recording.waits import WAKE_PS

_FEW = 3  # calls of two threads that overlap by chance: clocks of threads are not read at one time
_SHARE = 0.01
SLOW_CALL_PS = 50 * PS_PER_US  # a launch call that lasts longer did something else, too
_FULL_QUEUE = 256  # launches outstanding before a slow launch call is taken for a full queue

#: Calls that block, by what they wait for; the first that fits.
_BLOCKING = (
    ("stream", re.compile(r"^(cuda|hip|cu)StreamSynchronize", re.IGNORECASE)),
    (
        "device",
        re.compile(r"^((cuda|hip)DeviceSynchronize|cuCtxSynchronize|(cuda|hip)Free(Host)?$)", re.IGNORECASE),
    ),
    ("event", re.compile(r"^(cuda|hip|cu)EventSynchronize", re.IGNORECASE)),
    ("copy", re.compile(r"^(cuda|hip|cu)Memcpy", re.IGNORECASE)),
)
_ASYNC_COPY = re.compile(r"Async", re.IGNORECASE)


@dataclass(frozen=True)
class HostThreads:
    """The number by recorded thread of what counts as one thread: 0 is that with the most launches.

    Threads that launch nothing belong to it.
    """

    numbers: dict[int, int]

    def of(self, thread: int) -> int:
        """The number of a recorded thread."""
        return self.numbers.get(thread, 0)

    @property
    def count(self) -> int:
        """Threads that launch independently of each other."""
        return 1 + max(self.numbers.values(), default=0)


def host_threads(ops: RankOps) -> HostThreads:
    """Join threads whose calls hardly overlap, beginning with those that launch most."""
    calls = ops.trace.calls
    launched = ops.launching
    names, counts = np.unique(calls.thread[launched], return_counts=True)
    if len(names) < 2:
        return HostThreads({int(name): 0 for name in names})
    spans = {int(name): _spans(ops, int(name)) for name in names}
    groups: list[list[int]] = []
    for name in names[np.argsort(-counts, kind="stable")].tolist():
        fits = (group for group in groups if not any(_beside(spans[name], spans[other]) for other in group))
        group = next(fits, None)
        if group is None:
            groups.append([name])
        else:
            group.append(name)
    return HostThreads({name: number for number, group in enumerate(groups) for name in group})


def _spans(ops: RankOps, thread: int) -> tuple[IntArray, IntArray]:
    """Starts and ends of a thread's calls; of nested ones the outer."""
    calls = ops.trace.calls
    mine = np.flatnonzero(calls.thread == thread)
    start, end = calls.start_ps[mine], calls.end_ps[mine]
    outer = np.ones(len(mine), dtype=np.bool_)
    outer[1:] = start[1:] >= np.maximum.accumulate(end)[:-1]
    return start[outer], end[outer]


def _beside(one: tuple[IntArray, IntArray], other: tuple[IntArray, IntArray]) -> bool:
    """Whether calls of two threads overlap more than by chance."""
    (start, end), (others_start, others_end) = one, other
    overlapping = np.searchsorted(others_start, end) - np.searchsorted(others_end, start, side="right")
    count = int((overlapping > 0).sum())
    return count > max(_FEW, _SHARE * min(len(start), len(others_start)))


@dataclass(frozen=True)
class HostBlock:
    """A host thread blocks at ``start_ps``, until ``waits_for`` have ended, and goes on at ``end_ps``."""

    start_ps: int
    end_ps: int
    waits_for: tuple[int, ...]
    name: str
    thread: int = 0


@dataclass(frozen=True)
class HostBlocks:
    """Where the host blocked, sorted; ``concurrent`` counts blocking calls beside which others launched."""

    blocks: list[HostBlock]
    inferred: int
    concurrent: int
    queue_full: int


def host_blocks(ops: RankOps, threads: HostThreads) -> HostBlocks:
    """Blocking calls and what each waited for; the recording decides where no record does."""
    trace, calls = ops.trace, ops.trace.calls
    kinds = [next((kind for kind, pattern in _BLOCKING if pattern.match(name)), "") for name in trace.names]
    finder = _BlockTargets(ops, threads)
    blocks: list[HostBlock] = []
    inferred = concurrent = queue_full = 0
    relevant = np.array([bool(kind) for kind in kinds], dtype=np.bool_)[calls.name]
    launched_by: dict[int, list[int]] = {}
    for op in np.flatnonzero((ops.call >= 0) & relevant[ops.call]).tolist() if len(calls) else ():
        launched_by.setdefault(int(ops.call[op]), []).append(op)
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
        blocks.append(HostBlock(begin, end, tuple(targets), name, threads.of(thread)))
    for block in _full_queue(ops, finder):
        queue_full += 1
        blocks.append(block)
    blocks.sort(key=lambda block: block.start_ps)
    return HostBlocks(blocks, inferred, concurrent, queue_full)


def _blocks(ops: RankOps, op: int, call_name: str) -> bool:
    """Whether a copy call returns only when the copy is done: no Async in its name, or pageable memory."""
    copy = ops.trace.names[int(ops.trace.gpu.name[ops.row[op]])]
    return not _ASYNC_COPY.search(call_name) or "pageable" in copy.lower()


class _BlockTargets:
    """Finds what a blocking call waited for."""

    def __init__(self, ops: RankOps, threads: HostThreads) -> None:
        self._ops = ops
        self.threads = threads
        self._by_lane = [ops.in_lane(lane) for lane in range(len(ops.lane_names))]
        self._issue = [ops.issue_ps[members] for members in self._by_lane]
        calls = ops.trace.calls
        self._began = ops.trace.call_begins()
        launched = ops.launching
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


def _full_queue(ops: RankOps, finder: _BlockTargets) -> list[HostBlock]:
    """Launch calls that waited for room in the launch queue, as blocks until the op that made room ended."""
    calls = ops.trace.calls
    launched = ops.launching
    if not len(launched):
        return []
    length = calls.end_ps[launched] - calls.start_ps[launched]
    slow = launched[length > max(SLOW_CALL_PS, 10 * int(np.median(length)))]
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
            found.append(HostBlock(begin - 1, end, (room,), "launch queue is full", thread))
    return found
