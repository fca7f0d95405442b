"""Memory of NCCL's communicators, from what its source allocates for each connection."""

from __future__ import annotations

from simcore.collectives import NcclPlanner
from simcore.collectives.communicator import CommunicatorUse
from simcore.hardware import Topology, load_cluster
from simcore.units import KIB, MIB

NODE = tuple(range(8))


def planner(cluster, version="2.27.3", **nccl):
    return NcclPlanner(Topology(load_cluster(cluster, {"cluster.nccl_version": version})), **nccl)


def taken(planner, ranks, *calls, peers=()):
    return planner.buffer_bytes(CommunicatorUse("one", tuple(ranks), frozenset(calls), frozenset(peers)))


def test_a_ring_has_twelve_mib_a_channel() -> None:
    # Received: 0.5 + 4.6875 + 4 MiB and a state, in whole 2 MiB: 10; sent: a state, 2.  24 channels.
    assert taken(planner("h100", algorithm="ring"), NODE, ("all_gather", 64 * MIB)) == 24 * 12 * MIB


def test_before_2_22_trees_are_connected_with_the_rings() -> None:
    # A chain goes both ways: the way back is 12 MiB more a channel.  Of two ranks it is the ring's.
    # (NVIDIA/nccl issue 964: on A100 groups of more than two have 144 MiB more at an end of the chain, which
    # receives on 24 channels: 6 MiB each, as Ampere's senders have the other 6.)
    old = planner("a100", "2.18.5", algorithm="ring")
    assert taken(old, NODE, ("all_gather", 64 * MIB)) == 24 * 24 * MIB
    assert taken(old, (0, 1), ("all_gather", 64 * MIB)) == 24 * 12 * MIB


def test_all_to_all_connects_all_pairs_on_all_channels() -> None:
    # NVIDIA/nccl issue 1685, 8 H100: 32 channels a pair, buffers of 10 and of 2 MiB: 7 x 32 x 12 MiB.
    assert taken(planner("h100"), NODE, ("all_to_all", 64 * MIB), peers=NODE[1:]) == 7 * 32 * 12 * MIB


def test_the_switch_has_two_buffers_for_each_gpu() -> None:
    # src/transport/nvls.cc: 16 channels x 2 x 8 steps of 128 KiB x 8 GPUs.
    found = taken(planner("h100", algorithm="nvls"), NODE, ("all_reduce", 64 * MIB))
    assert found == 16 * 2 * 8 * 128 * KIB * 8


def test_messages_over_the_network_share_a_pool() -> None:
    one = taken(planner("h100-16"), (0, 8), peers=(8,))
    assert one == taken(planner("h100-32"), (0, 8, 16), peers=(8, 16)) > 0


def test_smaller_buffers_take_less_and_a_group_of_one_nothing() -> None:
    plain, small = planner("h100"), planner("h100", buffer_bytes=MIB)
    # 0.5 + 4.6875 + 1 MiB and a state: 8 + 2 MiB.
    assert taken(small, NODE, ("all_to_all", MIB), peers=NODE[1:]) == 7 * 32 * 10 * MIB
    assert taken(plain, (3,), ("all_reduce", MIB)) == 0
    assert taken(plain, NODE) == 0
