"""A framework's own all_reduce: slices read by their owners, added up in the switches, and read by all."""

from __future__ import annotations

import pytest

from simcore.collectives import NcclPlanner
from simcore.collectives.kinds import kind_of
from simcore.collectives.timing import timing_of
from simcore.errors import InputError
from simcore.hardware import Topology, load_cluster

NAME, SIZE = "all_reduce:oneshot,sms=16", 5_149_442


@pytest.mark.parametrize("gpus", [8, 64])
def test_nvlink_carries_slices_twice_and_a_nic_its_own_once(gpus: int) -> None:
    topology = Topology(load_cluster(f"a100-{gpus}"))
    plan = NcclPlanner(topology).plan(NAME, SIZE, range(gpus))
    assert (plan.algorithm, plan.channels) == ("routed", 16)
    carried = {use.link: use.weight * plan.volume_bytes for use in plan.links}
    # A GPU's own eighth stays; seven eighths leave to their owners, and its sum to seven others.
    assert carried[topology.nvlink_out(0)] == pytest.approx(SIZE * 2 * 7 / 8)
    if gpus > 8:  # up to the switches, which add, and down
        assert carried[topology.nic_out(0)] == carried[topology.nic_in(0)] == pytest.approx(SIZE / 8)


def test_a_small_one_is_faster_than_nccls_on_many_nodes() -> None:
    planner = NcclPlanner(Topology(load_cluster("a100-64")))
    assert planner.plan(NAME, SIZE, range(64)).alone_ps < planner.plan("all_reduce", SIZE, range(64)).alone_ps


def test_one_inside_a_running_kernel_takes_a_flagged_hop() -> None:
    cluster = load_cluster("a100-8")
    planner = NcclPlanner(Topology(cluster))
    inside, own = (
        planner.plan(f"all_reduce:{how},sms=1", 256, range(2)).alone_ps for how in ("inside", "oneshot")
    )
    hop_s = timing_of(cluster.gpu.table("nccl")).protocols["LL"].nvlink_hop_s
    # 256 bytes of one block's copy loop and the wire take 30 ns at most beside the hop.
    assert 1e12 * hop_s <= inside <= 1e12 * hop_s + 30_000
    assert own > 2 * inside


def test_a_misspelt_kernel_is_refused() -> None:
    with pytest.raises(InputError, match="oneshot,sms=COUNT"):
        kind_of("all_reduce:oneshot,sms=0")
