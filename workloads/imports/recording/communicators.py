"""Which communication kernels of several ranks are one communicator's, and which call is which.

Where NCCL's metadata was recorded, group, sequence number and peer say it.  Elsewhere a communication
stream counts as a communicator: streams of different ranks are one if they carry the same sequence of
collectives and these end together.

PyTorch's ``batch_isend_irecv`` issues one kernel for several sends and receives, which names no peer.  The
calls inside the batch do (``record_param_comms`` with "Dst Rank" or "Src Rank"): those between two
communication launches of a host thread belong to the later one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simcore.collectives.kinds import SEND_RECV
from simcore.collectives.kinds.all_to_all import ALL_TO_ALL
from simcore.records import dataclass
from workloads.imports.recording.columns import CollectiveMeta
from workloads.imports.recording.rank_ops import RankOps

_Kernel = tuple[int, int]  # index of the rank in the set, op of its RankOps
_OVERLAP = 0.75  # share of the shorter recording's calls that the longer one must have too
_EXCHANGES = (SEND_RECV.name, ALL_TO_ALL.name)
_MOST_SHIFTED = 64  # calls by which the recording of one rank may begin earlier than another's


@dataclass(frozen=True)
class CallSeries:
    """Calls of one communicator on one rank, in order: ``op`` of its :class:`RankOps`, collective and bytes.

    ``sequence`` are NCCL's numbers of the calls, None where not all are recorded.
    """

    op: list[int]
    what: list[tuple[str, int]]
    sequence: list[int] | None

    @property
    def alike(self) -> tuple[tuple[str, int], ...]:
        """What all ranks say of the calls: in an exchange each has a size of its own."""
        return tuple((kind, 0 if kind in _EXCHANGES else num_bytes) for kind, num_bytes in self.what)


@dataclass(frozen=True)
class RecordedCommunicator:
    """Calls that ranks may have issued together: ``calls[k]`` has (rank's index, op) of those of call ``k``.

    ``certain``: the recording names its members.
    """

    name: str
    what: list[tuple[str, int]]
    calls: list[list[_Kernel]]
    certain: bool


def communicators(ranks: list[RankOps], numbers: list[int]) -> tuple[list[RecordedCommunicator], list[str]]:
    """All communicators of two or more of ``ranks``, whose numbers are ``numbers``; and why some are none."""
    batched = _batched_calls(ranks, numbers)
    taken = {kernel for calls in batched.values() for call in calls for kernel in call}
    found: dict[tuple[object, ...], dict[int, CallSeries]] = defaultdict(dict)
    for index, (ops, number) in enumerate(zip(ranks, numbers, strict=True)):
        own = {op for member, op in taken if member == index}
        for key, series in _series(ops, number, own).items():
            found[key][index] = series
    joined = [
        RecordedCommunicator(
            f"sends and receives of {', '.join(str(numbers[index]) for index in members)}",
            [(SEND_RECV.name, 0)] * len(calls), calls, certain=True,
        )
        for members, calls in batched.items()
    ]  # fmt: skip
    refused = []
    for key, by_rank in found.items():
        if len(by_rank) < 2:
            continue
        name, certain = str(key[0]), bool(key[1])
        # Stages of a pipeline send to some of their group: no shift makes such sequences one.
        whole = len(by_rank) == 2 or all(
            kind != SEND_RECV.name for s in by_rank.values() for kind, _ in s.what
        )
        calls = _matched(ranks, by_rank, shifted=whole)
        if calls is None:
            refused.append(f"group {name or 'unnamed'}: ranks issued different sequences of collectives")
            continue
        told = {i: dict(zip(series.op, series.what, strict=True)) for i, series in by_rank.items()}
        what = [max(told[i][op] for i, op in call) for call in calls]
        joined.append(RecordedCommunicator(name, what, calls, certain))
    return joined, refused


def _series(ops: RankOps, number: int, without: set[int]) -> dict[tuple[object, ...], CallSeries]:
    """A rank's calls by communicator: (name, whether its members are named, what else tells it apart).

    ``without``: ops whose peers are known by other means.
    """
    calls: dict[tuple[object, ...], list[tuple[int, tuple[str, int], int]]] = defaultdict(list)
    for op in np.flatnonzero(ops.is_comm).tolist():
        if op in without:
            continue
        kind, meta = ops.collective(op), ops.meta(op)
        key = _key(meta, kind, number) or (int(ops.lane[op]),)
        calls[key].append((op, (kind, meta.num_bytes(kind) if meta else 0), meta.sequence if meta else -1))
    found: dict[tuple[object, ...], CallSeries] = {}
    for key, rows in calls.items():
        sequence = [number for _, _, number in rows]
        # Sends and receives are numbered by each rank for itself; coalesced calls share a number.
        known = min(sequence) >= 0 and len(set(sequence)) == len(sequence)
        known = known and all(kind != SEND_RECV.name for _, (kind, _), _ in rows)
        series = CallSeries(
            [op for op, _, _ in rows], [what for _, what, _ in rows], sequence if known else None
        )
        if len(key) == 1:  # a stream: told by what it carries
            key = _free(("communication stream", False, series.alike), found)
        elif not key[1]:  # a name that several groups may have
            key = _free((key[0], False, series.alike), found)
        found[key] = series
    return found


def _free(key: tuple[object, ...], taken: dict[tuple[object, ...], CallSeries]) -> tuple[object, ...]:
    """``key`` with the number of those like it before."""
    count = 0
    while (*key, count) in taken:
        count += 1
    return (*key, count)


def _key(meta: CollectiveMeta | None, kind: str, number: int) -> tuple[object, ...] | None:
    """What names a call's communicator; a sender and its receiver are one of two ranks."""
    if meta is None or not (meta.group or meta.group_ranks):
        return None
    name = f"{meta.group} {meta.group_ranks}".strip()
    if kind == SEND_RECV.name and meta.peer >= 0:
        sends = "send" in meta.collective.lower()
        source, target = (number, meta.peer) if sends else (meta.peer, number)
        return f"{name}, {source} to {target}", True
    return name, not meta.group_ranks or bool(meta.members)


def _matched(
    ranks: list[RankOps], by_rank: dict[int, CallSeries], *, shifted: bool
) -> list[list[_Kernel]] | None:
    """(rank, op) of each call; None where the ranks issued different sequences.

    ``shifted``: the recording of one rank may begin some calls before that of another.
    """
    if all(series.sequence is not None for series in by_rank.values()):
        return _by_sequence(by_rank)
    first = next(iter(by_rank))
    reference = by_rank[first]
    if not shifted and len({len(series.op) for series in by_rank.values()}) > 1:
        return None
    begins = {first: 0}
    for index, series in by_rank.items():
        if index != first:
            begin = _begin(ranks[first], reference, ranks[index], series)
            if begin is None:
                return None
            begins[index] = begin
    since = max(0, *begins.values())
    until = min(begins[i] + len(series.op) for i, series in by_rank.items())
    if until <= since:
        return None
    return [[(i, series.op[k - begins[i]]) for i, series in by_rank.items()] for k in range(since, until)]


def _by_sequence(by_rank: dict[int, CallSeries]) -> list[list[_Kernel]] | None:
    """Calls by NCCL's numbers; None where ranks say different things of one."""
    calls: dict[int, list[_Kernel]] = defaultdict(list)
    kinds: dict[int, set[str]] = defaultdict(set)
    for index, series in by_rank.items():
        assert series.sequence is not None
        for number, op, (kind, _) in zip(series.sequence, series.op, series.what, strict=True):
            calls[number].append((index, op))
            kinds[number].add(kind)
    if any(len(found) > 1 for found in kinds.values()):
        return None
    # A rank that was recorded for less long than others: calls that some of the ranks miss stand alone.
    return [calls[number] for number in sorted(calls) if len(calls[number]) == len(by_rank)] or None


def _begin(one: RankOps, ours: CallSeries, other: RankOps, theirs: CallSeries) -> int | None:
    """The number of our call that their first call is; None if no shift makes the two sequences fit.

    Of several that do, the one in which the calls' ends differ most evenly: clocks differ by a constant.
    """
    if [kind for kind, _ in ours.what] == [kind for kind, _ in theirs.what]:
        return 0
    ours_end, theirs_end = one.end_ps[ours.op], other.end_ps[theirs.op]
    most = min(_MOST_SHIFTED, max(len(ours.op), len(theirs.op)) // 2)
    enough = max(1, math.ceil(_OVERLAP * min(len(ours.op), len(theirs.op))))
    best: tuple[float, int] | None = None
    for begin in range(-most, most + 1):
        mine, others = (
            slice(max(0, begin), len(theirs.op) + begin),
            slice(max(0, -begin), len(ours.op) - begin),
        )
        if len(ours.op[mine]) < enough or ours.alike[mine] != theirs.alike[others]:
            continue
        best = min(best or (np.inf, 0), (spread(ours_end[mine] - theirs_end[others]), begin))
    return best[1] if best is not None else None


def spread(differences: npt.NDArray[np.number]) -> float:
    """How unevenly two clocks differ, ps: from the 10th to the 90th percentile."""
    low, high = np.percentile(differences, [10, 90])
    return float(high - low)


class RecordedMessage(NamedTuple):
    """What one rank sends another, by their numbers, in a process group."""

    group: str
    source: int
    target: int


def _batched_calls(ranks: list[RankOps], numbers: list[int]) -> dict[tuple[int, ...], list[list[_Kernel]]]:
    """Kernels that meet, by the indexes of their ranks: those that exchange messages, directly or by others.

    The n-th message from a rank to another is the n-th that the other receives from it.  Kernels with a peer
    that was not recorded, or that are not linked one to a rank, are left out.
    """
    sends: dict[RecordedMessage, list[_Kernel]] = defaultdict(list)
    receives: dict[RecordedMessage, list[_Kernel]] = defaultdict(list)
    for index, (ops, number) in enumerate(zip(ranks, numbers, strict=True)):
        for op, batch in _batches(ops).items():
            for group, peer, is_send in batch:
                if is_send:
                    sends[RecordedMessage(group, number, peer)].append((index, op))
                else:
                    receives[RecordedMessage(group, peer, number)].append((index, op))
    linked: dict[_Kernel, set[_Kernel]] = defaultdict(set)
    alone: set[_Kernel] = set()
    for message in {**sends, **receives}:
        ours, theirs = sends.get(message, []), receives.get(message, [])
        if len(ours) != len(theirs):
            alone.update(ours, theirs)
            continue
        for one, other in zip(ours, theirs, strict=True):
            linked[one].add(other)
            linked[other].add(one)
    found: dict[tuple[int, ...], list[list[_Kernel]]] = defaultdict(list)
    seen: set[_Kernel] = set()
    for kernel in sorted(linked):
        if kernel in seen:
            continue
        together, reached = {kernel}, [kernel]
        while reached:
            new = linked[reached.pop()] - together
            together |= new
            reached += new
        seen |= together
        members = tuple(sorted({index for index, _ in together}))
        if len(members) == len(together) > 1 and not together & alone:
            found[members].append(sorted(together))
    return found


def _batches(ops: RankOps) -> dict[int, list[tuple[str, int, bool]]]:
    """(group, peer, whether it is sent) of what each kernel without a peer of its own exchanges, by op."""
    trace = ops.trace
    calls = trace.notes.p2p.by_thread()
    if not calls:
        return {}
    found: dict[int, list[tuple[str, int, bool]]] = {}
    for thread, issued in calls.items():
        launched = [
            op for op in np.flatnonzero(ops.is_comm & (ops.call >= 0)).tolist()
            if int(trace.calls.thread[ops.call[op]]) == thread
        ]  # fmt: skip
        launched.sort(key=lambda op: int(trace.calls.start_ps[ops.call[op]]))
        at = 0
        for op in launched:
            until = int(trace.calls.start_ps[ops.call[op]])
            batch = []
            while at < len(issued) and issued[at][0] <= until:
                batch.append(issued[at][1:])
                at += 1
            meta = ops.meta(op)
            if batch and ops.collective(op) == SEND_RECV.name and (meta is None or meta.peer < 0):
                found[op] = batch
    return found
