"""From a decision and its load on links to a plan: closed forms of its time alone and of what HBM carries."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from simcore.collectives.decision import Decision
from simcore.collectives.kinds import Collective
from simcore.collectives.plan import CollectivePlan, LinkUses
from simcore.errors import InputError
from simcore.records import dataclass
from simcore.units import PS_PER_S, ps_from_s

#: A day: a step with a slower collective comes from a mistyped bandwidth, and overflows 64 bits of ps soon.
_LONGEST_S: Final = 86_400.0


@dataclass(frozen=True)
class PlannedLoad:
    """Links of one group under one algorithm.

    ``nvlink_bytes_per_s``, ``network_bytes_per_s``: the smallest capacity / weight among the members' NVLink
    ports and among all other links, per byte of an average rank.  The weights of ``uses`` are per byte of
    one connection, ``connections`` of which carry what an average rank sends
    (:class:`simcore.collectives.loads.LoadPerByte`).  ``network_share``: of what an average rank sends, the
    part that crosses nodes.
    """

    uses: LinkUses
    nvlink_bytes_per_s: float
    network_bytes_per_s: float
    network_share: float
    connections: float
    feed_weight: float


def max_min_rate(rate_cap_bytes_per_s: float, capacities: npt.ArrayLike, weights: npt.ArrayLike) -> float:
    """Progress per second that a plan reaches alone: min(cap, capacity / weight) over its links.

    ``capacities`` (bytes/s) and ``weights`` (link bytes per byte of progress) are equally long.  A single
    flow's max-min share is simply its tightest link.  ``inf`` without cap and links.
    """
    capacity = np.asarray(capacities, dtype=np.float64)
    weight = np.asarray(weights, dtype=np.float64)
    tightest = float((capacity / weight).min()) if len(weight) else math.inf
    return min(rate_cap_bytes_per_s, tightest)


def alone_ps(latency_ps: int, volume_bytes: float, rate_bytes_per_s: float) -> int:
    """Latency plus transfer, whole picoseconds (nearest)."""
    if volume_bytes == 0:
        return latency_ps
    return latency_ps + round(volume_bytes * PS_PER_S / rate_bytes_per_s)


def hbm_bytes_per_wire_byte(
    kind: Collective, algorithm: str, num_ranks: int, wire_overhead: float, network_share: float
) -> float:
    """HBM traffic of a member per wire byte that an average member sends.

    Every wire byte that arrives is written to a FIFO, which HBM sees, and read from it soon after, which it
    does not, since L2 still holds it: 1 (with the users' buffers below 2 to 3 in a measured all_gather,
    NVIDIA/nccl issue 1428).  One that crosses nodes is also written to the sender's FIFO, from where the NIC
    reads it: 1 more (``network_share`` of all).  On top come the users' buffers (NCCL
    src/device/all_reduce.h and others): each n-th of what a rank gives is read once and of what it gets
    written once (an all_to_all copies its own share), see :meth:`Collective.user_bytes_per_sent`.

    NVLS copies the input to a buffer that the switch can address (read, write), the switch reads it and
    writes the sum, which is copied out (read, write): 6 n shares for 2 (n-1).  Where ranks give a part, it
    is stored into everybody's buffer and all is copied out, 1 + 3 n shares; where they get one, all is
    copied in, the switch reads it, one share is written, 3 n + 1; n-1 sent.

    Of a pair one member sends and the other receives: its progress counts the message once, so that an
    average member has half of the sum.
    """
    if algorithm == "nvls" and kind.one_way:
        return (3 * num_ranks + 1) / (num_ranks - 1)
    if algorithm in ("nvls", "nvls_tree"):
        return 6 * num_ranks / (2 * (num_ranks - 1)) + 2.0 * network_share
    total = 1.0 + network_share + kind.user_bytes_per_sent(num_ranks) / wire_overhead
    return total / 2 if kind.pair else total


def plan_of(
    kind: Collective,
    num_bytes: int,
    ranks: tuple[int, ...],
    decision: Decision,
    load: PlannedLoad,
    error: float,
) -> CollectivePlan:
    """What ``decision`` asks of the links in ``load``, and how long that takes alone.

    InputError for one that takes longer than a day.
    """
    overhead = decision.protocol.wire_overhead
    volume = decision.sent_bytes * overhead
    inside = decision.copy_share * min(decision.copy_bytes_per_s, load.nvlink_bytes_per_s)
    between = decision.network_share * load.network_bytes_per_s
    rate = min(inside, between)
    fill_s = overhead * (
        decision.fill_bytes / rate
        + decision.fill_inside_bytes / inside
        + decision.fill_between_bytes / between
    )
    seconds = decision.latency_s + volume / rate + fill_s
    if not seconds <= _LONGEST_S:
        raise InputError(
            f"{kind.name} of {num_bytes} bytes among {len(ranks)} ranks would take {seconds:.3g} s at"
            f" {rate:.3g} B/s, more than the {_LONGEST_S:g} s that one may take; check the links' bandwidths"
        )
    latency_ps = ps_from_s(decision.latency_s + fill_s)
    hbm_bytes = decision.hbm_bytes_per_byte
    if hbm_bytes is None:
        hbm_bytes = hbm_bytes_per_wire_byte(
            kind, decision.algorithm, len(ranks), overhead, load.network_share
        )
    # Progress counts the bytes of one connection, so that max-min sharing is fair between connections.
    return CollectivePlan(
        collective=kind.name,
        num_bytes=num_bytes,
        ranks=ranks,
        algorithm=decision.algorithm,
        protocol=decision.protocol.name,
        channels=decision.channels,
        chunk_bytes=decision.chunking.chunk_bytes,
        num_chunks=decision.chunking.num_chunks,
        num_steps=decision.num_steps,
        latency_ps=latency_ps,
        volume_bytes=volume / load.connections,
        rate_cap_bytes_per_s=rate / load.connections,
        hbm_bytes_per_byte=hbm_bytes * load.connections,
        links=load.uses,
        alone_ps=alone_ps(latency_ps, volume, rate),
        relative_error=error,
        copy_bytes_per_s=decision.copy_share * decision.copy_bytes_per_s / load.connections,
        between_ps=ps_from_s(decision.between_s + fill_s),
        feed_weight=load.feed_weight,
    )


def empty_plan(kind: Collective, num_bytes: int, ranks: tuple[int, ...]) -> CollectivePlan:
    """The plan of a group of one, or of no bytes: NCCL returns at once, nothing is launched."""
    return CollectivePlan(
        collective=kind.name,
        num_bytes=num_bytes,
        ranks=ranks,
        algorithm="none",
        protocol="Simple",
        channels=0,
        chunk_bytes=0,
        num_chunks=0,
        num_steps=0,
        latency_ps=0,
        volume_bytes=0.0,
        rate_cap_bytes_per_s=math.inf,
        hbm_bytes_per_byte=0.0,
        links=(),
        alone_ps=0,
    )
