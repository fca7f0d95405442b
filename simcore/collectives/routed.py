"""An exchange of experts' tokens by kernels of its own: over NICs to a node once, over NVLink from there.

Note [Routed exchange]
    DeepSeek's kernels (arXiv 2412.19437, section 3.2.2; DeepEP) send a token once to each node that has one
    of its experts, to the GPU with the sender's place in the node, which hands it on over NVLink to those
    GPUs of the node that need it; sums come back the same way.  All of it runs in one kernel on a number of
    SMs that the program sets, NICs and NVLink at the same time, chunk by chunk
    (:class:`simcore.collectives.kinds.all_to_all.TokenExchange`).
    Of n nodes (n-1)/n of the size crosses NICs; of k GPUs of the group on a node, NVLink carries ``gpus``
    (k-1)/k times the size.  HBM: the token is read; what crosses is written for the NIC and read by it,
    written by the other NIC and read by who hands it on; each GPU that it is for writes it.  Buffers of the
    NVLink hop are chunks, which L2 keeps.
"""

from __future__ import annotations

from typing import Final

from simcore.collectives.decision import Costs, Decision
from simcore.collectives.kinds.all_to_all import TokenExchange
from simcore.collectives.layout import PlacedGroup
from simcore.collectives.loads import LinkLoad, LoadPerByte
from simcore.collectives.protocols import SIMPLE, Chunking
from simcore.hardware.topology import Topology

#: Bytes that one SM moves over NVLink for such a kernel, per second.  Source: DeepEP's normal kernels on one
#: node of H100, 4 to 16 SMs held, fp8 dispatch and bf16 combine of 13 shapes (ai-dynamo/aiconfigurator at
#: 095f58a51c, systems/data/h100_sxm/comm/sglang/0.5.12/wideep_deepep_normal_perf.parquet): 14 to 17 GB/s
#: where NVLink is not what limits.
SM_BYTES_PER_S: Final = 16e9
#: Shares of the rate of NICs and of NVLink that the kernels reach.  Source: deepseek-ai/DeepEP README.md of
#: its first release (February 2025), H800: 46 and 45 GB/s for 64 GPUs on 8 nodes with the sender's own node
#: counted, 7/8 of it over a NIC of 47 GB/s (51 and 50 since April 2025: docs/legacy.md); 153 and 158 of
#: 165 GB/s over NVLink.
NETWORK_SHARE: Final = 0.85
NVLINK_SHARE: Final = 0.94
#: Bytes of a chunk in flight: 6 tokens of 7,168 in bf16 (DeepEP csrc/deep_ep.cpp, Config: RDMA send chunks).
_CHUNK_BYTES: Final = 86_016


def routed_load(exchange: TokenExchange, fabric: Topology, layout: PlacedGroup) -> LoadPerByte:
    """Load of each link per byte of the exchange's size; see Note [Routed exchange]."""
    load = LinkLoad(fabric)
    nodes = layout.nodes
    for gpus in nodes:
        for place, src in enumerate(gpus):
            for dst in gpus:
                if src != dst:
                    load.add(fabric.route(src, dst), exchange.gpus / len(gpus))
            for other in nodes:
                if other is not gpus:
                    load.add(fabric.route(src, other[place % len(other)]), 1.0 / len(nodes))
    return load.per_byte(1.0)


def routed_decision(exchange: TokenExchange, costs: Costs, num_bytes: int, layout: PlacedGroup) -> Decision:
    """What runs: one kernel, one hop over NICs and one over NVLink behind each other's chunks."""
    timing = costs.timing.protocols[SIMPLE.name]
    crosses = layout.num_nodes > 1
    hops_s = (costs.network_hop_s(SIMPLE, layout) if crosses else 0.0) + timing.nvlink_hop_s
    inside = exchange.gpus * (layout.max_per_node - 1) / layout.max_per_node
    handed_on = max(inside, (layout.num_nodes - 1) / layout.num_nodes)
    return Decision(
        algorithm="routed",
        protocol=SIMPLE,
        channels=exchange.sms,
        chunking=Chunking(_CHUNK_BYTES, 1, max(1, -(-num_bytes // (_CHUNK_BYTES * exchange.sms))), 1),
        num_steps=layout.num_nodes,
        latency_s=costs.timing.p2p_simple_base_s + hops_s,
        sent_bytes=float(num_bytes),
        fill_bytes=0.0,
        copy_bytes_per_s=exchange.sms * SM_BYTES_PER_S / handed_on,
        copy_share=NVLINK_SHARE,
        network_share=NETWORK_SHARE,
        hbm_bytes_per_byte=_hbm_bytes(exchange, layout),
    )


def _hbm_bytes(exchange: TokenExchange, layout: PlacedGroup) -> float:
    """HBM traffic of a member per byte of the size; see Note [Routed exchange]."""
    crossing = (layout.num_nodes - 1) / layout.num_nodes
    return 1.0 + 4.0 * crossing + exchange.gpus
