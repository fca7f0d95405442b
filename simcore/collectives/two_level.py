"""all_to_all in two levels: first among the GPUs of a node, then along rails.

What libraries for mixtures of experts do on top of NCCL (Tutel, DeepSpeed-MoE): a rank gives each neighbour
what is meant for the neighbour's rail on any node, then each rail exchanges what its members collected.  A
rank sends K-1 and N-1 large messages instead of N K - 1 small ones; the links carry what pairwise messages
over rails (PXN) put on them, but NVLink and NICs work one after the other.  NCCL itself has no such
algorithm, so it must be asked for.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from simcore.collectives.layout import PlacedGroup
from simcore.collectives.loads import LinkLoad, LoadPerByte
from simcore.hardware.topology import Topology

if TYPE_CHECKING:
    from simcore.collectives.decision import Decision


def fits_two_levels(layout: PlacedGroup) -> bool:
    """Whether every node holds as many ranks, more than one, on more than one node."""
    sizes = {len(gpus) for gpus in layout.nodes}
    return layout.num_nodes > 1 and len(sizes) == 1 and layout.max_per_node > 1


def two_level_shares(layout: PlacedGroup) -> tuple[float, float]:
    """Of what a rank sends to others in all, what the level in the node and the one between nodes carry.

    N (K-1) and K (N-1) pieces, where a pairwise exchange has N K - 1: what changes both node and rail is sent
    twice, so that they add up to more than 1.
    """
    nodes, local = layout.num_nodes, layout.max_per_node
    others = nodes * local - 1
    return nodes * (local - 1) / others, local * (nodes - 1) / others


def two_level_load(fabric: Topology, layout: PlacedGroup) -> LoadPerByte:
    """Load of both levels, per byte that each rank has for all others together."""
    load = LinkLoad(fabric)
    nodes = layout.nodes
    for gpus in nodes:
        for src in gpus:
            for dst in gpus:
                if src != dst:
                    load.add(fabric.route(src, dst), float(layout.num_nodes))
    for src_gpus in nodes:
        for dst_gpus in nodes:
            if src_gpus is not dst_gpus:
                for src, dst in zip(src_gpus, dst_gpus, strict=True):
                    load.add(fabric.route(src, dst), float(layout.max_per_node))
    return load.per_byte(layout.num_ranks - 1.0)


def one_after_the_other(
    within: Decision,
    between: Decision,
    layout: PlacedGroup,
    nvlink_bytes_per_s: float,
    nic_bytes_per_s: float,
) -> Decision:
    """One decision for both levels, each with its own start.

    ``within`` and ``between`` move what an average rank sends on their level; the rates are a GPU's on NVLink
    and over NICs.  Each level has the wires for its share of the time.
    """
    inner, outer = two_level_shares(layout)
    inner_s, outer_s = inner / nvlink_bytes_per_s, outer / nic_bytes_per_s
    return replace(
        between,
        algorithm="hierarchical",
        num_steps=within.num_steps + between.num_steps,
        latency_s=within.latency_s + between.latency_s,
        between_s=within.between_s + between.latency_s,
        sent_bytes=within.sent_bytes / inner,
        copy_bytes_per_s=within.copy_bytes_per_s / inner,
        copy_share=within.copy_share * inner_s / (inner_s + outer_s),
        network_share=between.network_share * outer_s / (inner_s + outer_s),
    )
