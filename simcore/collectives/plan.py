"""A collective, decided: what NCCL would run, and what it asks of GPUs and links.

The seam between ``collectives`` (which knows NCCL) and ``engine``/``network`` (which know sharing).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Final, NamedTuple, Protocol, overload

import numpy as np
import numpy.typing as npt

from simcore.collectives.kinds import Collective, kind_of
from simcore.records import dataclass

#: Channels of one launch, as far as a message does not have more of its own: those of a communicator's
#: send/recv (src/include/device.h, MAXCHANNELS of the releases that the profiles run).
_MAX_SHARED_CHANNELS: Final = 32


class LinkUse(NamedTuple):
    """A plan's load on one directed link: ``weight`` link bytes per byte of plan progress.

    Progress counts the bytes of one connection, so a weight is a number of connections: flows that share a
    link get shares by connection, as ports that take turns between connections give them.

    ``inputs``: for a link that a switch sends on, how many NICs the plan's connections over it come from;
    switches that arbitrate between input ports share by these.  0 for links that data starts or ends on.
    """

    link: int  # index into Topology.links
    weight: float
    inputs: float = 0.0


class LinkUses(Sequence[LinkUse]):
    """A plan's loads as columns, links ascending; single ones are made when somebody asks for them.

    A group of thousands of ranks loads as many links, and few of them concern a representative.
    """

    def __init__(self, link: npt.ArrayLike, weight: npt.ArrayLike, inputs: npt.ArrayLike) -> None:
        self.link = np.asarray(link, dtype=np.int64)
        self.weight = np.asarray(weight, dtype=np.float64)
        self.inputs = np.asarray(inputs, dtype=np.float64)

    @classmethod
    def of(cls, uses: Sequence[LinkUse]) -> LinkUses:
        """From single ones; columns as they are."""
        if isinstance(uses, LinkUses):
            return uses
        return cls(*zip(*uses, strict=True)) if uses else cls((), (), ())

    @cached_property
    def _single(self) -> tuple[LinkUse, ...]:
        columns = (self.link, self.weight, self.inputs)
        return tuple(map(LinkUse, *(column.tolist() for column in columns)))

    def __len__(self) -> int:
        return len(self.link)

    @overload
    def __getitem__(self, index: int) -> LinkUse: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[LinkUse, ...]: ...
    def __getitem__(self, index: int | slice) -> LinkUse | tuple[LinkUse, ...]:
        return self._single[index]

    def __iter__(self) -> Iterator[LinkUse]:
        return iter(self._single)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._single == tuple(other)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, eq=False)
class CollectivePlan:
    """One collective (or send/recv pair) on given ranks; told apart by identity, as requests for one are.

    It lasts ``latency_ps`` (launch, protocol and step latencies that do not overlap with data), then
    moves ``volume_bytes`` of progress at a rate x <= ``rate_cap_bytes_per_s`` (channels x what one channel
    can do) such that each used link carries ``weight * x``.  Alone it lasts ``alone_ps``.

    Of the latency, ``between_ps`` passes between the steps, after the first byte has left.  Alone that makes
    no difference; beside others it is time in which they may use the links, and which vanishes where data is
    slower than the steps would follow each other (:attr:`pace_bytes_per_s`).

    ``channels`` SMs are held on each member from block placement to the end.  Each member's HBM
    carries ``hbm_bytes_per_byte * x`` while data moves.
    ``feed_weight``: the plan's connections on each NIC that it sends through (0: none).
    ``copy_bytes_per_s``: the part of the cap that is the channels' copy loops, which no link sets.
    ``relative_error``: one standard deviation of ``alone_ps`` on a fabric that was not measured, relative.
    ``num_bytes`` is the message's size, as in a graph and a timeline.  ``volume_bytes`` is another quantity,
    what one connection carries on the wire: ``num_bytes`` times what an average rank sends of each
    byte (2 (n-1)/n in an all_reduce), times the protocol's wire bytes per data byte, divided by the
    connections over which an average rank sends.
    ``shape`` fields say what was decided and why a row of the timeline looks as it does.
    """

    collective: str  # all_reduce, all_gather, ..., send_recv
    num_bytes: int  # nccl-tests' size convention
    ranks: tuple[int, ...]
    algorithm: str  # ring, tree, ..., p2p
    protocol: str  # LL, LL128, Simple
    channels: int
    chunk_bytes: int
    num_chunks: int
    num_steps: int
    latency_ps: int
    volume_bytes: float
    rate_cap_bytes_per_s: float
    hbm_bytes_per_byte: float
    links: Sequence[LinkUse]
    alone_ps: int
    relative_error: float = 0.0
    copy_bytes_per_s: float = math.inf
    between_ps: int = 0
    feed_weight: float = 0.0

    @property
    def kind(self) -> Collective:
        """What kind of collective it is."""
        return kind_of(self.collective)

    @cached_property
    def lead_ps(self) -> int:
        """Latency before the first byte moves."""
        return self.latency_ps - self.between_ps

    @cached_property
    def pace_bytes_per_s(self) -> float:
        """Progress per second alone with the waits between steps spread over the data; at most the cap."""
        if not self.between_ps or not self.volume_bytes > 0:
            return self.rate_cap_bytes_per_s
        return min(self.rate_cap_bytes_per_s, self.volume_bytes * 1e12 / (self.alone_ps - self.lead_ps))


class Planner(Protocol):
    """Decides how NCCL would carry out a collective or a send/recv."""

    def plan(self, collective: str, num_bytes: int, ranks: tuple[int, ...]) -> CollectivePlan:
        """Plan of a collective; ``num_bytes`` in nccl-tests' convention."""
        ...

    def plan_p2p(self, num_bytes: int, src_rank: int, dst_rank: int) -> CollectivePlan:
        """Plan of a send/recv pair."""
        ...


def launch_channels(plans: Iterable[CollectivePlan]) -> int:
    """Thread blocks of the one kernel that carries out all calls of an NCCL group.

    NCCL gives the calls of a group different channels until they run out, then several to each
    (src/enqueue.cc, scheduleCollTasksToPlan and scheduleP2pTasksToPlan).
    """
    channels = [plan.channels for plan in plans]
    return max(min(_MAX_SHARED_CHANNELS, sum(channels)), max(channels, default=0))
