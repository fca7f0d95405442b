"""Collectives of several recorded ranks: which calls belong together, and how the ranks' clocks differ.

Note [How long a collective takes].  From the last arrival to the first end of its kernels, on one clock.
Members end some us apart, each by its own time after that (``late_ps``), which is a pause behind its kernel
and in the kernel where it is shown.  So what follows starts where it was recorded, and chains of calls, right
behind one another, do not drift.  A message is the shorter kernel: clocks of stages that exchange nothing
else are as sure as the messages themselves.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import field

from simcore.collectives.kinds import SEND_RECV
from simcore.records import dataclass
from simcore.units import PS_PER_MS, PS_PER_US
from workloads.imports.recording.clocks import RecordedClock, aligned
from workloads.imports.recording.communicators import RecordedCommunicator, communicators
from workloads.imports.recording.rank_ops import RankOps

#: Kernels of one collective end together; ends that differ by more, clocks aligned, are of different calls.
#: The shorter a call, the less: what it lasts itself, within these bounds.
_TOGETHER_PS = (50 * PS_PER_US, PS_PER_MS // 2)
_MOSTLY = 0.9  # of the calls of two ranks, for these to be of one communicator


@dataclass(frozen=True)
class CoupledKernel:
    """One rank's kernel of a collective: index of the rank in the set, op of its :class:`RankOps`."""

    index: int
    op: int


@dataclass(frozen=True)
class CoupledCollective:
    """A collective of the present ranks of a group: it is over ``transfer_ps`` after the last has arrived,
    and each member's kernel ``late_ps`` after that.
    """

    group: str
    collective: str
    num_bytes: int
    members: tuple[CoupledKernel, ...]
    transfer_ps: int
    late_ps: tuple[int, ...]


@dataclass(frozen=True)
class RankCoupling:
    """``collectives`` of several ranks; ``alone`` counts communication kernels that stand for themselves.

    ``clocks[i]`` puts rank ``i``'s times on the clock of the first; ``refused`` says which groups could not
    be coupled, and why.
    """

    collectives: list[CoupledCollective] = field(default_factory=list)
    alone: int = 0
    clocks: tuple[RecordedClock, ...] = ()
    refused: tuple[str, ...] = ()


def couple(ranks: list[RankOps], numbers: list[int], base_ps: list[int]) -> RankCoupling:
    """Find which communication kernels of several ranks are one collective.

    ``base_ps[i]`` is rank ``i``'s origin relative to the first rank's, as the traces tell; ``numbers`` are
    the ranks' numbers.  Clocks are aligned by the ends of calls; calls that did not end together are none.
    """
    found, refused = communicators(ranks, numbers)
    clocks = aligned(ranks, base_ps, found)
    coupled, apart = [], 0
    for communicator in found:
        for name, members in _split(ranks, clocks, communicator):
            for (kind, num_bytes), call in zip(communicator.what, communicator.calls, strict=True):
                joined = tuple(CoupledKernel(index, op) for index, op in call if index in members)
                if not _together(ranks, clocks, joined):
                    apart += 1
                    continue
                starts, ends = _times(ranks, clocks, joined)
                if kind == SEND_RECV.name:
                    transfer_ps = min(end - start for start, end in zip(starts, ends, strict=True))
                    late_ps = (0,) * len(ends)
                else:
                    transfer_ps = max(0, min(ends) - max(starts))
                    late_ps = tuple(max(0, end - max(starts) - transfer_ps) for end in ends)
                coupled.append(CoupledCollective(name, kind, num_bytes, joined, transfer_ps, late_ps))
    if apart:
        refused.append(f"{apart} collectives whose kernels did not end together on all ranks")
    total = sum(int(ops.is_comm.sum()) for ops in ranks)
    return RankCoupling(coupled, total - sum(len(c.members) for c in coupled), tuple(clocks), tuple(refused))


def _together(ranks: list[RankOps], clocks: list[RecordedClock], joined: tuple[CoupledKernel, ...]) -> bool:
    """Whether kernels may be one collective: none ends before the last has come.

    A kernel that only sends may end a little before its peers do.
    """
    starts, ends = _times(ranks, clocks, joined)
    least, most = _TOGETHER_PS
    shortest = min(end - start for start, end in zip(starts, ends, strict=True))
    apart = max(ends) - min(ends)
    return apart <= min(most, max(least, shortest)) and max(starts) <= min(ends) + 5 * PS_PER_US


def _times(
    ranks: list[RankOps], clocks: list[RecordedClock], joined: tuple[CoupledKernel, ...]
) -> tuple[list[int], list[int]]:
    """Starts and ends of kernels, ps of the first rank's clock."""
    starts = [clocks[m.index].common(int(ranks[m.index].start_ps[m.op])) for m in joined]
    ends = [clocks[m.index].common(int(ranks[m.index].end_ps[m.op])) for m in joined]
    return starts, ends


def _split(
    ranks: list[RankOps], clocks: list[RecordedClock], communicator: RecordedCommunicator
) -> list[tuple[str, set[int]]]:
    """Name and ranks of what is one communicator; several where only their calls are alike."""
    indexes = [index for index, _ in communicator.calls[0]]
    if communicator.certain:
        return [(communicator.name, set(indexes))]
    op_of: dict[int, list[int]] = defaultdict(list)
    for call in communicator.calls:
        for index, op in call:
            op_of[index].append(op)
    found: list[list[int]] = []
    for index in indexes:
        for members in found:
            pairs = zip(op_of[members[0]], op_of[index], strict=True)
            fits = [
                _together(ranks, clocks, (CoupledKernel(members[0], a), CoupledKernel(index, b)))
                for a, b in pairs
            ]
            if sum(fits) >= _MOSTLY * len(fits):
                members.append(index)
                break
        else:
            found.append([index])
    several = len(found) > 1
    return [
        (f"{communicator.name} of {members[0]}" if several else communicator.name, set(members))
        for members in found
        if len(members) > 1
    ]
