"""Experts' tokens exchanged by a kernel of one's own on 20 SMs, instead of NCCL's sends and receives.

    python scripts/run_sim.py deepseek-v3 --cluster h100-256 --set parallel.pp=8 --set parallel.ep=32
        --set training.recompute=full --rules examples/rules/own_all_to_all.py

Each rank writes what it has for the GPUs of another node to the GPU there that has its own place, over its
own NIC, and that one hands it on over NVLink.  The kernel holds its SMs from launch to end and reaches 85% of
a NIC's rate: numbers of one's own micro-benchmark belong here.
"""

from collections import defaultdict

from simcore.rules import RuleGraph, collective, rule


@collective("rail_exchange", sms=20, sm_bytes_per_s=16e9, network_share=0.85, nvlink_share=0.94)
def rail_exchange(nodes):
    """A flow for each hop; the size is what a rank has for all ranks, so that each gets 1/n of it."""
    ranks, of_node = len(nodes), defaultdict(list)
    for member, node in enumerate(nodes):
        of_node[node].append(member)
    for members in of_node.values():
        for place, src in enumerate(members):
            for others in of_node.values():
                if others is not members:  # along the rail, all that is for that node
                    yield src, others[place % len(others)], len(others) / ranks
            for dst in members:  # its own, and what came along the rail for it
                if src != dst:
                    yield src, dst, len(of_node) / ranks


@rule("dispatch and combine of experts are our kernel's")
def experts(graph: RuleGraph) -> None:
    """All exchanges of the expert-parallel group, on a stream beside the layers' own."""
    graph.ops(kind="collective", group="ep", name="all_to_all|dispatch|combine").replace(
        name=lambda op: op.name.replace("nccl::", "ours::"), collective=rail_exchange
    )
