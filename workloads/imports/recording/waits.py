"""What ops of one stream waited for on another: recorded where the trace says so, inferred where not.

CUDA records who waits for whom only when the profiler was asked to (``cuda_sync`` records).  Otherwise two
rules guess.  A cudaStreamWaitEvent call inside a call that issues communication belongs to the launch that
follows it: the collective waits for what was launched before it.  One outside belongs to the next kernel,
which waits for the last collective that had ended by then; those issued later are prefetched.  Where no such
calls are recorded, what is launched next tells which of both a wait is.  And an op that started later than
stream and launch explain waited for the op elsewhere that ended just before.  A guess that the recording
contradicts (the source ended after its target started) is dropped.
"""

from __future__ import annotations

import re

import numpy as np

from simcore.graph.ops import IntArray
from simcore.records import dataclass
from simcore.units import PS_PER_US
from workloads.imports.recording.rank_ops import RankOps

_WAIT_CALL = re.compile(r"^(cuda|hip|cu)StreamWaitEvent", re.IGNORECASE)
#: An op begins within this time of what it waited for: event signalling takes a few us.
WAKE_PS = 20 * PS_PER_US
_PREFETCHED = 8  # collectives that may be under way beside the one that is waited for
_LOOK_BACK = 16  # ends that are looked at before giving up


@dataclass(frozen=True)
class OpWaits:
    """Pairs of ops: ``target`` could not start before ``source`` had ended.

    ``inferred`` marks guesses; ``recorded_calls`` and ``guessed_calls`` count wait calls with and without a
    record, ``dropped`` the waits that the recording contradicts.
    """

    source: IntArray
    target: IntArray
    inferred: IntArray
    recorded_calls: int = 0
    guessed_calls: int = 0
    dropped: int = 0

    def latest_end(self, ops: RankOps) -> IntArray:
        """When the last op that each op waits for ended; far in the past where it waits for none."""
        latest = np.full(len(ops), -(1 << 62), dtype=np.int64)
        np.maximum.at(latest, self.target, ops.end_ps[self.source])
        return latest


def find_waits(ops: RankOps, latency_ps: int) -> OpWaits:
    """Waits between lanes of one rank.  ``latency_ps``: from a launch call to the start on an idle stream."""
    tolerance = ops.trace.resolution_ps
    found: dict[tuple[int, int], bool] = dict.fromkeys(ops.chained, False)
    recorded, guessed = _wait_calls(ops)
    dropped = 0
    for pairs, inferred in ((recorded, False), (guessed, True)):
        for source, target in pairs:
            if source < 0 or target < 0 or ops.lane[source] == ops.lane[target]:
                continue
            if ops.end_ps[source] > ops.start_ps[target] + tolerance:
                dropped += 1
            else:
                found.setdefault((source, target), inferred)
    for pair in _unexplained(ops, _columns(found), latency_ps, tolerance):
        found.setdefault(pair, True)
    waits = _columns(found)
    return OpWaits(waits.source, waits.target, waits.inferred, len(recorded), len(guessed), dropped)


def _columns(found: dict[tuple[int, int], bool]) -> OpWaits:
    pairs = np.array([(s, t, i) for (s, t), i in found.items()], dtype=np.int64).reshape(-1, 3).T
    source, target, inferred = (np.ascontiguousarray(column) for column in pairs)
    return OpWaits(source, target, inferred)


def _wait_calls(ops: RankOps) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """(source, target) of each cudaStreamWaitEvent: from records, and guessed."""
    trace, calls = ops.trace, ops.trace.calls
    is_wait = np.array([_WAIT_CALL.match(name) is not None for name in trace.names], dtype=np.bool_)
    waits = np.flatnonzero(is_wait[calls.name]) if len(calls) else np.zeros(0, dtype=np.int64)
    by_lane = [ops.in_lane(lane) for lane in range(len(ops.lane_names))]
    issue = [ops.issue_ps[members] for members in by_lane]
    tolerance = trace.resolution_ps
    began = trace.call_begins()

    def last_before(lanes: list[int], time: int, ended: int | None = None) -> int:
        """The last op issued before ``time``: of each lane the last that had ``ended`` then, if one had."""
        found = []
        for lane in lanes:
            place = int(np.searchsorted(issue[lane], time))
            some = by_lane[lane][max(0, place - _PREFETCHED) : place]
            fits = some[ops.end_ps[some] <= ended + tolerance] if ended is not None else some
            found += (fits if len(fits) else some)[-1:].tolist()
        return max(found, default=-1)

    def first_after(lanes: list[int], time: int) -> int:
        found = [(lane, int(np.searchsorted(issue[lane], time))) for lane in lanes]
        later = [int(by_lane[lane][at]) for lane, at in found if at < len(by_lane[lane])]
        return min(later, default=-1)

    comm_lanes = [lane for lane, members in enumerate(by_lane) if ops.is_comm[members].any()]
    issuing = trace.notes.communication.enclose(calls.start_ps[waits], calls.thread[waits])
    following = _next_launch(ops, waits, np.arange(len(ops)))
    if len(trace.notes.communication):
        # What issues communication is known: a wait outside holds up a kernel, whatever is launched between.
        kernels = _next_launch(ops, waits, np.flatnonzero(~ops.is_comm))
        following = np.where(issuing, following, kernels)
    recorded, guessed = [], []
    for call, follower in zip(waits.tolist(), following.tolist(), strict=True):
        time = int(calls.start_ps[call])
        record = trace.syncs.get(int(calls.correlation[call]))
        if record is not None and record.source_stream >= 0 and record.stream >= 0:
            since = began.get(record.record_correlation, time)
            source = last_before(ops.lanes_of_stream(record.source_stream), since)
            recorded.append((source, first_after(ops.lanes_of_stream(record.stream), time)))
            continue
        if record is not None and record.stream >= 0:
            # The stream that waits is known, the event's is not.
            later = first_after(ops.lanes_of_stream(record.stream), time)
            follower = later if later >= 0 else follower
        if follower >= 0:
            own = int(ops.lane[follower])
            if ops.is_comm[follower]:
                others = [lane for lane in range(len(by_lane)) if lane != own and lane not in comm_lanes]
            else:
                others = [lane for lane in comm_lanes if lane != own]
            guessed.append((last_before(others, time, int(ops.start_ps[follower])), follower))
    return recorded, guessed


def _next_launch(ops: RankOps, waits: IntArray, among: IntArray) -> IntArray:
    """The op of ``among`` whose launching call comes next on the thread of each wait call; -1: none."""
    calls = ops.trace.calls
    launched = among[ops.call[among] >= 0]
    thread, time = calls.thread[ops.call[launched]], calls.start_ps[ops.call[launched]]
    found = np.full(len(waits), -1, dtype=np.int64)
    for number in np.unique(calls.thread[waits]).tolist():
        mine = launched[thread == number]
        order = np.argsort(time[thread == number], kind="stable")
        asked = np.flatnonzero(calls.thread[waits] == number)
        places = np.searchsorted(time[thread == number][order], calls.start_ps[waits[asked]])
        known = places < len(order)
        found[asked[known]] = mine[order[places[known]]]
    return found


def _unexplained(ops: RankOps, waits: OpWaits, latency_ps: int, tolerance: int) -> list[tuple[int, int]]:
    """Waits that explain ops which started later than stream, launch and known waits would have let them."""
    known = np.maximum(np.maximum(ops.free_from(), waits.latest_end(ops)), ops.issue_ps + latency_ps)
    by_end = np.argsort(ops.end_ps, kind="stable")
    ends = ops.end_ps[by_end]
    found = []
    for op in np.flatnonzero(ops.start_ps > known + WAKE_PS).tolist():
        begins = int(ops.start_ps[op])
        at = int(np.searchsorted(ends, begins + tolerance, side="right")) - 1
        for place in range(at, max(-1, at - _LOOK_BACK), -1):
            source = int(by_end[place])
            if ends[place] < max(int(known[op]), begins - WAKE_PS):
                break
            if ops.lane[source] != ops.lane[op] and ops.issue_ps[source] <= ops.issue_ps[op] and source != op:
                found.append((source, op))
                break
    return found
