"""NVLink domains of several nodes: trays of a rack, whose GPUs switches join while each has its NICs."""

from __future__ import annotations

import re

import pytest

from simcore.collectives import NcclPlanner
from simcore.errors import InputError
from simcore.hardware import ClusterSpec, Topology, load_cluster
from simcore.hardware.shape import placed_on
from simcore.run import Setup, run
from simcore.units import GIB
from workloads.jobs import complete

RACKS = load_cluster("gb200-144")


def test_a_rack_is_one_domain_and_its_nics_are_the_trays() -> None:
    racks = Topology(RACKS)
    # 18 trays of 4 GPUs: GPU 5 sits in tray 1, GPU 71 in tray 17, 72 opens the second rack.
    assert (racks.node_of(5), racks.place_of(71)) == (1, 71)
    assert racks.route(5, 71) == (racks.nvlink_out(5), racks.nvlink_in(71))
    assert racks.route(5, 73)[0] == racks.nic_out(5) and racks.route(5, 73)[-1] == racks.nic_in(73)
    # Data for a GPU of the other rack leaves by the NIC of that GPU's rail: the one of its place, same tray.
    assert racks.relay(5, 74) == 6 and racks.relay(5, 71) == 5
    assert racks.nic_of(6) == (1, 2)


def test_many_routes_at_once_are_the_same_as_one_by_one() -> None:
    import numpy as np

    racks = Topology(RACKS)
    src, dst = np.array([0, 3, 70, 71, 5]), np.array([71, 4, 72, 143, 5])
    found = racks.routes(src, dst)
    for row, pair in zip(found, zip(src, dst, strict=True), strict=True):
        assert tuple(link for link in row.tolist() if link >= 0) == racks.route(*map(int, pair))


def test_collectives_take_a_domain_for_a_node() -> None:
    planner = NcclPlanner(Topology(RACKS))
    rack = planner.plan("all_reduce", GIB, tuple(range(72)))
    assert (rack.algorithm, rack.channels) == ("nvls", 24)
    inside = {link for use in rack.links for link in [use.link]}
    assert inside <= set(range(2 * 144))  # ports alone
    # 32 of 72 GPUs keep a slice: their ports carry B + B/32, others B.
    weights = sorted({round(use.weight, 9) for use in rack.links})
    assert weights[1] / weights[0] == pytest.approx(33 / 32)
    both = planner.plan("all_reduce", GIB, tuple(range(144)))
    assert any(use.link >= 2 * 144 for use in both.links)


@pytest.mark.parametrize(
    ("name", "changes", "told"),
    [
        ("gb200-256", {}, "64 nodes (256 GPUs) are no whole number of NVLink domains of 18 nodes (72 GPUs)"),
        ("gb200-256", {}, "nearest: 216 or 288 GPUs"),
        ("gb200-254", {}, "254 GPUs are no whole number of 4-GPU nodes; nearest: gb200-252 or gb200-256"),
        ("gb200-72", {"cluster.placement": "domains:73"}, "an NVLink domain of this cluster has 72 GPUs"),
        ("gb200-72", {"cluster.placement": "domain:8"}, "did you mean 'domains:<n>'"),
        ("a100-pcie-16", {"cluster.nodes_per_domain": "2"}, "nodes_per_domain needs intra_node"),
    ],
)
def test_trays_that_do_not_fit_are_refused(name: str, changes: dict[str, str], told: str) -> None:
    with pytest.raises(InputError, match=re.escape(told)):
        load_cluster(name, changes)


def test_part_of_a_rack_is_a_smaller_domain() -> None:
    two = Topology(load_cluster("gb200-8"))
    assert two.num_gpus == 8 and two.route(0, 7) == (two.nvlink_out(0), two.nvlink_in(7))


def test_ranks_are_placed_by_domain() -> None:
    racks = Topology(placed_on(RACKS, "domains:64"))
    assert racks.gpus_of_ranks(128).tolist() == [*range(64), *range(72, 136)]
    with pytest.raises(InputError, match="rank 128 is not placed"):
        racks.gpu_of_rank(128)


@pytest.mark.parametrize(
    ("name", "placement", "ranks"),
    [
        ("gb200-144", "linear", 72),
        ("gb200-144", "domains:48", 48),
        ("gb200-144", "round_robin", 1),
        ("gb200-72", "round_robin", 72),
        # 24 ranks of the first rack, 36 of the second, so that one begins at rank 24 and one at rank 60.
        ("gb200-216", "nodes:0,1,2,3,4,5,18,19,20,21,22,23,24,25,26,36", 12),
        ("h100-16", "linear", 8),
    ],
)
def test_groups_of_ranks_stay_in_a_domain_where_they_divide_it(name: str, placement: str, ranks: int) -> None:
    assert placed_on(load_cluster(name), placement).ranks_per_domain == ranks


def _step_s(placed: ClusterSpec, *, fold: bool) -> float:
    said = {
        "model": {
            "layers": 4, "hidden": 1024, "heads": 8, "ffn": 4096, "vocab": 32000,
            "moe": {"num_experts": 64, "top_k": 4, "ffn": 512},
        },
        "parallel": {"pp": 2, "ep": 16},
        "training": {"seq": 1024, "micro_batch": 1, "global_batch": 288},
        "software": {"preset": "megatron-core-moe"},
    }  # fmt: skip
    job = complete(said, "a job", num_gpus=placed.num_placed, generation=placed.gpu.generation)
    return run(job.graph(), placed, Setup(fold=fold)).step_s


@pytest.mark.parametrize(("gpus", "used"), [(144, 32), (288, 24)])
def test_folding_stays_exact(gpus: int, used: int) -> None:
    # Groups of 16 ranks lie within racks of 32, and across racks of 24.
    racks = placed_on(load_cluster(f"gb200-{gpus}"), f"domains:{used}")
    assert _step_s(racks, fold=True) == _step_s(racks, fold=False)
