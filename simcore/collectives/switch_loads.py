"""Loads of what only some groups run: the NVSwitch's all_gather and reduce_scatter, and PAT.

See :mod:`simcore.collectives.rings` for what a load is.
"""

from __future__ import annotations

from simcore.collectives.algorithms import aggregated_hops
from simcore.collectives.layout import Fabric, Layout
from simcore.collectives.rings import LinkLoad, Load


def nvls_one_way_load(fabric: Fabric, layout: Layout, efficiency: float, *, gathers: bool) -> Load:
    """Load of an all_gather (``gathers``) or reduce_scatter in the switch, per byte that a ring would send.

    One direction of a GPU's port carries the whole buffer, the other the GPU's own n-th of it, at
    ``efficiency`` of the port: multicast stores and in-switch reads (NCCL src/device/all_gather.h and
    reduce_scatter.h under NVLS).
    """
    load = LinkLoad(fabric)
    share = 1.0 / layout.num_ranks
    for gpus in layout.nodes:
        for gpu in gpus:
            own, others = (fabric.nvlink_out(gpu), fabric.nvlink_in(gpu))
            if not gathers:
                own, others = others, own
            load.add((own,), share / efficiency)
            for _ in range(layout.num_ranks):  # multicast of everybody, reads by everybody
                load.add((others,), share / efficiency)
    return load.per_byte(1.0 - share)


def pat_load(fabric: Fabric, layout: Layout, *, gathers: bool) -> Load:
    """Load of parallel aggregated trees, per byte that each rank sends; sums travel the other way."""
    load = LinkLoad(fabric)
    order = [gpu for gpus in layout.nodes for gpu in gpus]
    num_ranks = len(order)
    for distance, come in aggregated_hops(num_ranks):
        for rank, gpu in enumerate(order):
            peer = order[(rank + (distance if gathers else -distance)) % num_ranks]
            load.add(fabric.route(gpu, peer), float(len(come)))
    return load.per_byte(num_ranks - 1.0)
