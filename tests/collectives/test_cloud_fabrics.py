"""Fabrics of clouds: what their owners set of NCCL, and what was measured on them."""

import pytest

from simcore.collectives import NcclPlanner
from simcore.collectives.environment import Environment, parse_environment
from simcore.errors import InputError
from simcore.hardware import Topology, load_cluster
from simcore.units import GIB, KIB, MIB, PS_PER_US

RANKS = tuple(range(16))


def planner(name: str, **forced: object) -> NcclPlanner:
    return NcclPlanner(Topology(load_cluster(f"{name}-16")), **forced)  # type: ignore[arg-type]


def test_the_environment_reads_as_nccl_does() -> None:
    assert parse_environment("") == Environment()
    text = "NCCL_ALGO=Ring,Tree NCCL_PROTO=Simple NCCL_NVLS_ENABLE=0 NCCL_MIN_NCHANNELS=4"
    text += " NCCL_BUFFSIZE=8388608"
    assert parse_environment(text) == Environment(
        algorithm="Ring,Tree", protocol="Simple", nvls=False, min_channels=4, buffer_bytes=8 * MIB
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("NCCL_BUFSIZE=1", "did you mean 'NCCL_BUFFSIZE'"),
        ("NCCL_BUFFSIZE=8M", "whole number above 0, not '8M'"),
        ("NCCL_NVLS_ENABLE=yes", "takes 0, 1 or 2"),
        ("NCCL_PROTO=Simpel", "unknown NCCL protocol"),
        ("NCCL_ALGO", "unknown variable 'NCCL_ALGO'"),
    ],
)
def test_what_the_environment_cannot_be(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        NcclPlanner(Topology(load_cluster("h100-16", {"cluster.nccl_environment": text})))


def test_a_fabrics_environment_holds_unless_something_else_is_forced() -> None:
    plan = planner("h100-tcpx").plan("all_reduce", GIB, RANKS)
    assert (plan.algorithm, plan.protocol, plan.channels) == ("ring", "Simple", 12)
    # In a node no NVLS either: the variable speaks of all communicators.
    assert planner("h100-tcpx").plan("all_reduce", GIB, RANKS[:8]).algorithm == "ring"
    other = planner("h100-tcpx", algorithm="tree", protocol="LL", max_channels=2)
    forced = other.plan("all_reduce", MIB, RANKS)
    assert (forced.algorithm, forced.protocol, forced.channels) == ("tree", "LL", 2)
    # EFA's first generation may deliver bytes out of order: nothing but Simple.
    assert planner("a100-efa").plan("all_gather", KIB, RANKS).protocol == "Simple"
    assert planner("h100-efa").plan("all_reduce", KIB, RANKS).protocol == "LL"


@pytest.mark.parametrize(
    ("num_bytes", "measured_us"),
    # 2 a3-megagpu-8g (lessizzmore/create-a3mega-ztan-fork at 02dd8f455c).
    [
        (64, 123.4), (4 * KIB, 126.9), (MIB, 203.2), (4 * MIB, 364.6), (16 * MIB, 977.6), (32 * MIB, 1059.9),
        (256 * MIB, 2360.9), (8 * GIB, 47535.0),
    ],
)  # fmt: skip
def test_all_reduce_over_tcpxo(num_bytes: int, measured_us: float) -> None:
    plan = planner("h100-tcpxo").plan("all_reduce", num_bytes, RANKS)
    assert (plan.algorithm, plan.protocol) == ("tree", "Simple")
    assert plan.alone_ps / PS_PER_US == pytest.approx(measured_us, rel=0.1)


def test_two_nodes_exchange_halves_in_trees_where_nvlink_is_wider_than_the_nics() -> None:
    # 8 NICs of 200 Gb/s: a ring moves 200 / 1.875 = 107 GB/s at most, two trees 200.
    tree = planner("h100-tcpxo").plan("all_reduce", 8 * GIB, RANKS)
    ring = planner("h100-tcpxo", algorithm="ring").plan("all_reduce", 8 * GIB, RANKS)
    assert tree.algorithm == "tree" and ring.alone_ps > 1.6 * tree.alone_ps


def test_the_plugins_latency_is_for_the_tuner_alone() -> None:
    def plans(told: str):
        topology = Topology(load_cluster("a100-efa-16", {"cluster.nccl_net_latency_s": told}))
        found = NcclPlanner(topology, algorithm="ring")
        return found.plan("all_reduce", MIB, RANKS).alone_ps, found.tuner_s("all_reduce", MIB, RANKS)[0]

    (alone, tuner), (same, later) = plans("27us"), plans("75us")
    assert alone == same
    # Two hops between nodes, the wire twice under Simple, and NCCL's factor of 1.4 for the plateau.
    assert later - tuner == pytest.approx(1.4 * 2 * 2 * 48e-6)
