"""Closed forms: a plan's time alone, and what it asks of HBM."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from simcore.collectives.plan import LinkUse
from simcore.units import PS_PER_S


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


def link_uses(links: npt.ArrayLike, weights: npt.ArrayLike, inputs: npt.ArrayLike) -> tuple[LinkUse, ...]:
    """Arrays of link indices, weights and input ports as the plan's tuple."""
    ids = np.asarray(links, dtype=np.int64).tolist()
    loads = np.asarray(weights, dtype=np.float64).tolist()
    ports = np.asarray(inputs, dtype=np.float64).tolist()
    return tuple(LinkUse(*use) for use in zip(ids, loads, ports, strict=True))


def hbm_bytes_per_wire_byte(
    collective: str, algorithm: str, num_ranks: int, wire_overhead: float, network_share: float
) -> float:
    """HBM traffic of a member per wire byte that an average member sends.

    Every wire byte that arrives is written to a FIFO and read from it: 2.  One that crosses nodes is also
    written to the sender's FIFO and read from there by the NIC: 2 more (``network_share`` of all).  On top
    come the user buffers, in shares of B/n, per data byte sent (NCCL src/device/all_reduce.h and others):

    * all_reduce: n reads of the input (each share once) and n writes of the output; 2 (n-1) shares sent.
    * reduce_scatter: n reads, 1 write; n-1 sent.  all_gather: 1 read, n writes; n-1 sent.
    * all_to_all: n reads, n writes (one of each copies the rank's own share); n-1 sent.
    * broadcast, reduce: every rank but the last of a chain sends B.  n-1 ranks store it and one reads it; all
      n add their own to it and one stores it.
    * send_recv: read once where it starts, written once where it ends: 2 per byte sent.

    NVLS copies the input to a buffer that the switch can address (read, write), the switch reads it and
    writes the sum, which is copied out (read, write): 6 n shares for 2 (n-1).  An all_gather stores its own
    share into everybody's buffer and copies all out, 1 + 3 n shares; a reduce_scatter copies all in, the
    switch reads it, one share is written, 3 n + 1; n-1 sent.

    Of a send_recv one member sends and the other receives: its progress counts the message once, so that
    an average member has half of the sum.
    """
    if algorithm == "nvls" and collective in ("all_gather", "reduce_scatter"):
        return (3 * num_ranks + 1) / (num_ranks - 1)
    if algorithm in ("nvls", "nvls_tree"):
        return 6 * num_ranks / (2 * (num_ranks - 1)) + 2.0 * network_share
    if collective in ("all_reduce", "barrier"):
        user = 2 * num_ranks / (2 * (num_ranks - 1))
    elif collective in ("all_gather", "reduce_scatter"):
        user = (num_ranks + 1) / (num_ranks - 1)
    elif collective == "all_to_all":
        user = 2 * num_ranks / (num_ranks - 1)
    elif collective == "broadcast":
        user = 1.0
    elif collective == "reduce":
        user = (num_ranks + 1) / num_ranks
    else:
        user = 2.0
    total = 2.0 + 2.0 * network_share + user / wire_overhead
    return total / 2 if collective == "send_recv" else total
