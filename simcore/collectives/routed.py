"""Collectives by a program's own kernel (:class:`simcore.collectives.kinds.own_kernel.OwnKernel`)."""

from __future__ import annotations

from typing import Final

from simcore.collectives.decision import Costs, Decision
from simcore.collectives.kinds.own_kernel import OwnKernel
from simcore.collectives.layout import PlacedGroup
from simcore.collectives.loads import LinkLoad, LoadPerByte
from simcore.collectives.protocols import LL, SIMPLE, Chunking
from simcore.hardware.topology import Topology

#: Bytes of a chunk in flight: 6 tokens of 7,168 in bf16 (DeepEP csrc/deep_ep.cpp, Config: RDMA send chunks).
_CHUNK_BYTES: Final = 86_016


def routed_load(kernel: OwnKernel, fabric: Topology, layout: PlacedGroup) -> LoadPerByte:
    """Load of each link per byte of the collective's size."""
    load = LinkLoad(fabric)
    gpus = [gpu for members in layout.nodes for gpu in members]
    for src, dst, share in kernel.flows(nodes_of(layout)):
        load.add(fabric.route(gpus[src], gpus[dst]), share)
    return load.per_byte(1.0)


def routed_decision(kernel: OwnKernel, costs: Costs, num_bytes: int, layout: PlacedGroup) -> Decision:
    """What runs: one kernel, one hop over NICs and one over NVLink behind each other's chunks."""
    protocol = LL if kernel.flagged else SIMPLE
    timing = costs.timing.protocols[protocol.name]
    crosses, nodes = layout.num_nodes > 1, nodes_of(layout)
    hops_s = (costs.network_hop_s(protocol, layout) if crosses else 0.0) + timing.nvlink_hop_s
    start_s = costs.timing.p2p_simple_base_s if kernel.start_s is None else kernel.start_s
    in_flight = _CHUNK_BYTES * max(1, kernel.sms)
    return Decision(
        algorithm="routed",
        protocol=protocol,
        channels=kernel.sms,
        chunking=Chunking(_CHUNK_BYTES, 1, max(1, -(-num_bytes // in_flight)), 1),
        num_steps=layout.num_nodes,
        latency_s=start_s + hops_s,
        sent_bytes=float(num_bytes),
        fill_bytes=0.0,
        copy_bytes_per_s=kernel.sms_bytes_per_s(nodes),
        copy_share=kernel.nvlink_share,
        network_share=kernel.network_share,
        hbm_bytes_per_byte=kernel.hbm_bytes(nodes),
    )


def nodes_of(layout: PlacedGroup) -> tuple[int, ...]:
    """Number of the node of each member, in the order of their GPUs."""
    return tuple(number for number, gpus in enumerate(layout.nodes) for _ in gpus)
