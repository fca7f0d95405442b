"""Folding stays exact on every kind of node, fabric, routing and placement."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from simcore.hardware import ClusterSpec, Topology, load_cluster
from tests.symmetry import jobs
from tests.symmetry.test_fold import both

PCIE = {
    "cluster.intra_node": "pcie",
    "cluster.pcie_bytes_per_s": "12GB/s",
    "cluster.pcie_latency_s": "1us",
    "cluster.pcie_switch_of_gpu": "0,0,0,0,1,1,1,1",
    "cluster.cpu_of_pcie_switch": "0,1",
    "cluster.cpu_bytes_per_s": "10GB/s",
}
DRAGONFLY = {
    "cluster.fabric": "dragonfly",
    "cluster.nodes_per_leaf": "1",
    "cluster.leaves_per_group": "2",
    "cluster.local_cables": "2",
    "cluster.global_cables": "1",
}
FAT_TREE = {
    "cluster.fabric": "fat_tree",
    "cluster.nodes_per_leaf": "1",
    "cluster.leaves_per_pod": "2",
    "cluster.core_oversubscription": "4",
}
TOPOLOGIES: dict[str, tuple[str, dict[str, str]]] = {
    "dgx1v": ("dgx1v-{}", {}),
    "hgx4": ("hgx4-a100-{}", {}),
    "pcie": ("h800-{}", PCIE),
    "fat tree": ("h800-{}", FAT_TREE),
    "fat tree of rails": (
        "h800-{}",
        {"cluster.nodes_per_leaf": "1", "cluster.leaves_per_pod": "16", "cluster.core_oversubscription": "2"},
    ),
    "dragonfly": ("h800-{}", DRAGONFLY),
    "shared NICs": ("h800-{}", {"cluster.nics_per_node": "3"}),
    "several NICs": ("h800-{}", {"cluster.nics_per_node": "16"}),
    "listed NICs": ("h800-{}", {"cluster.nics_per_node": "4", "cluster.nic_of_gpu": "3,1,0,2,2,0,1,3"}),
    "rails by ECMP": ("h800-{}", {"cluster.routing": "ecmp", "cluster.nodes_per_leaf": "2"}),
    "round robin": ("h800-{}", {"cluster.placement": "round_robin"}),
    "small groups of rails": ("h800-{}", {"cluster.nodes_per_leaf": "1"}),
}


def topology(name: str, gpus: int) -> Topology:
    family, overrides = TOPOLOGIES[name]
    return Topology(load_cluster(family.format(gpus), overrides))


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_a_folded_run_is_the_unfolded_one(name: str) -> None:
    where = topology(name, 32)
    both(jobs.pipeline(jobs.one_f_one_b(2, 3), tp=4, dp=4), where)
    both(jobs.data_parallel(32, buckets=2), where)
    both(jobs.expert_parallel(32), where)


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_pairs_that_cross_rails_fold(name: str) -> None:
    where = topology(name, 16)
    both(jobs.across_rails(), where)
    both(jobs.pairs_across_rails(), where)


def placed(cluster: ClusterSpec, gpus: list[int]) -> Topology:
    return Topology(replace(cluster, placement="listed", placed_gpus=tuple(gpus)))


@pytest.mark.parametrize("name", ["dgx1v", "fat tree", "rails by ECMP", "dragonfly"])
@pytest.mark.parametrize("seed", range(3))
def test_any_placement_folds(name: str, seed: int) -> None:
    cluster = topology(name, 32).cluster
    gpus = random.Random(seed).sample(range(32), 32)
    both(jobs.pipeline(jobs.one_f_one_b(2, 2), tp=4, dp=4), placed(cluster, gpus))


@pytest.mark.parametrize("seed", range(3))
def test_permuting_ranks_of_a_symmetric_topology_changes_nothing(seed: int) -> None:
    # One job over all GPUs behind full bisection: who is where makes no difference to a data-parallel job.
    cluster = topology("small groups of rails", 32).cluster
    graph = jobs.data_parallel(32, buckets=2)
    gpus = random.Random(seed).sample(range(32), 32)
    plain = jobs.run(graph, Topology(cluster), fold=True)
    assert jobs.run(graph, placed(cluster, gpus), fold=True).step_ps == plain.step_ps


def test_a_placement_over_nodes_costs_what_it_must() -> None:
    # Tensor parallel groups of four: inside nodes when filled in order, over four nodes when dealt in turn.
    graph = jobs.pipeline(jobs.one_f_one_b(1, 2), tp=4, dp=1)
    cluster = load_cluster("h800-32")
    inside = jobs.run(graph, Topology(cluster), fold=True)
    over = jobs.run(graph, Topology(replace(cluster, placement="round_robin")), fold=True)
    assert over.step_ps > inside.step_ps
    listed = jobs.run(graph, placed(cluster, [0, 8, 16, 24]), fold=True)
    assert listed.step_ps == over.step_ps


def test_an_odd_link_inside_one_node_refines_only_that_node() -> None:
    cluster = replace(topology("dgx1v", 32).cluster, link_overrides={"node.1.nvlink.0.3.bytes_per_s": 1e9})
    graph = jobs.pipeline(jobs.one_f_one_b(1, 2), tp=8, dp=4)
    folded = both(graph, Topology(cluster))
    healthy = jobs.run(graph, topology("dgx1v", 32), fold=True)
    assert folded.step_ps > healthy.step_ps
    assert len(set(folded.class_of[8:16]) & set(folded.class_of[:8])) == 0
