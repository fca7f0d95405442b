"""Clusters with round numbers, and plans run on them as packets."""

from dataclasses import replace

from simcore.clock import Clock
from simcore.collectives import NcclPlanner
from simcore.hardware import Topology, load_cluster
from simcore.network import Flow
from simcore.network.packet import PacketNetwork

MB = 1_000_000
NVLINK, NIC = 100e9, 10e9  # bytes/s


def topology(nodes=1, per_node=4, latency_s=0.0, **changes):
    base = load_cluster("h800-96")
    gpu = replace(base.gpu, nvlink_bytes_per_s=NVLINK, nvlink_efficiency=1.0)
    return Topology(
        replace(
            base,
            gpu=gpu,
            num_nodes=nodes,
            gpus_per_node=per_node,
            nics_per_node=per_node,
            nic_bytes_per_s=NIC,
            nic_efficiency=1.0,
            nvlink_latency_s=latency_s,
            nic_latency_s=latency_s,
            hop_latency_s=latency_s / 2,
            **changes,
        )
    )


def run(fabric, *plans, settings=None, members=(), during=None):
    """(ends in microseconds, network) of plans that start together."""
    clock = Clock()
    network = PacketNetwork(clock, fabric, settings)
    ends = {}
    for number, plan in enumerate(plans):
        flow = Flow(clock, plan, members)
        flow.callbacks.append(lambda _, number=number: ends.update({number: clock.now / 1e6}))
        network.start(flow)
        if during is not None:
            during(network, flow)
    clock.drain()
    return [ends[number] for number in range(len(plans))], network


def planner(fabric, algorithm="ring", **kw):
    return NcclPlanner(fabric, algorithm=algorithm, protocol="Simple", **kw)
