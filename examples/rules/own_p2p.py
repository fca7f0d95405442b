"""A pipeline whose framework sends by a library of its own: puts into the peer's buffer, driven by NICs.

    python scripts/trace_workload.py examples/rules/pipeline.py --world-size 4 --out my-pipeline
    python scripts/run_sim.py my-pipeline --cluster h100-32 --rules examples/rules/own_p2p.py

In the trace `ring::put` and `ring::get` are ops without a meaning: stages would not wait for each other.
"""

from simcore.rules import RuleGraph, point_to_point, rule

#: No SM moves data: proxies on the host ring the NIC's doorbell, 4 us after the launch.
ring = point_to_point("ring", sms=0, network_share=0.9, start_s=4e-6)
MICROBATCHES = 8


@rule("ring::put and ring::get are messages between neighbouring stages")
def messages(graph: RuleGraph) -> None:
    """The first of each on a rank are of forwards, the last of backwards; the ends have one neighbour."""
    world = graph.graph.world_size
    graph.group("ring", [range(world)])
    first, last = range(MICROBATCHES), range(-MICROBATCHES, 0)
    for which, sending, receiving, peer in (
        (first, range(world - 1), range(1, world), 1),
        (last, range(1, world), range(world - 1), -1),
    ):
        puts = graph.ops(name="ring::put", ranks=sending).nth(*which)
        gets = graph.ops(name="ring::get", ranks=receiving).nth(*which)
        graph.pair(puts, gets, group="ring", peer=peer, by=ring, buffered=True)
