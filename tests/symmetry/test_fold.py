"""Folding changes nothing: rank by rank the same times to the picosecond, with and without."""

import numpy as np
import pytest

from simcore.collectives import NcclPlanner
from simcore.engine import Noise
from simcore.engine.shortcuts import simulate
from simcore.errors import InputError
from simcore.hardware import Topology
from simcore.symmetry import partition
from tests.engine.lab import TableCost
from tests.symmetry import jobs


def both(graph, where, variants=None):
    """Folded result after comparing it with the unfolded one, rank by rank."""
    folded = jobs.run(graph, where, fold=True, variants=variants)
    same(folded, jobs.run(graph, where, fold=False, variants=variants), graph.world_size)
    return folded


def same(folded, plain, world_size):
    """Every rank of an unfolded run as its class in the folded one."""
    assert len(plain.times) == world_size
    for rank in range(world_size):
        ours, theirs = folded.times_of(rank), plain.times_of(rank)
        for column in ("ready_ps", "start_ps", "end_ps"):
            np.testing.assert_array_equal(
                getattr(ours, column), getattr(theirs, column), err_msg=f"rank {rank}"
            )
        here, there = int(folded.class_of[rank]), rank
        alone = [
            r.plans[i].alone_ps if i >= 0 else -1
            for r, c in ((folded, here), (plain, there))
            for i in r.plan_of[c]
        ]
        half = len(alone) // 2
        assert alone[:half] == alone[half:]
    assert folded.step_ps == plain.step_ps


@pytest.mark.parametrize(
    ("job", "nodes", "changes", "classes"),
    [
        # One class per stage: tensor and data parallel ranks are alike.  A group of many nodes reduces over a
        # tree of switches whose roots, the first and last node, send less through their NICs.
        (jobs.dense_3d, 16, {}, 4),
        (jobs.gradients_at_the_end, 8, {}, 2),
        (jobs.uneven_stages, 8, {}, 4),
        (jobs.interleaved, 8, {}, 4),
        (jobs.data_parallel, 8, {}, 2),
        (jobs.expert_parallel, 8, {}, 1),
        (jobs.two_jobs, 16, {}, 2),
    ],
)
def test_symmetric_jobs(job, nodes, changes, classes):
    assert len(both(job(), jobs.topology(nodes, **changes)).times) == classes


@pytest.mark.parametrize(("num_bytes", "classes"), [(4, 1), (4 * jobs.MB, 2)])
def test_a_message_within_a_packet_makes_no_difference(num_bytes, classes):
    # Both go over a tree, whose roots send less than the others: 4 MB of it on each NIC is a difference, one
    # number is none, and lasts what NCCL's latencies add up to.
    where = jobs.topology(8)
    folded = both(jobs.one_sum(64, num_bytes), where)
    assert len(folded.times) == classes
    alone = NcclPlanner(where).plan("all_reduce", num_bytes, tuple(range(64))).alone_ps
    lasts = folded.times[0].end_ps - folded.times[0].start_ps
    assert lasts[1] == alone


@pytest.mark.parametrize("fabric", ["rail", "leaf_spine"])
@pytest.mark.parametrize("job", [jobs.two_jobs, jobs.dense_3d, jobs.data_parallel, jobs.expert_parallel])
def test_flows_that_share_spines(job, fabric):
    # Leaves of two nodes, a quarter of the bandwidth above them: rings and sends of many ranks share uplinks.
    where = jobs.topology(16, fabric=fabric, nodes_per_leaf=2, spine_oversubscription=4.0)
    folded = both(job(), where)
    free = jobs.run(job(), jobs.topology(16), fold=True)
    assert folded.step_ps > free.step_ps  # the spines do limit
    assert len(folded.times) <= 16


@pytest.mark.parametrize("fabric", ["rail", "leaf_spine", "fat_tree"])
@pytest.mark.parametrize("job", [jobs.two_jobs, jobs.dense_3d, jobs.expert_parallel, jobs.across_rails])
def test_uplinks_that_are_never_full_change_nothing(job, fabric, monkeypatch):
    # As much bandwidth above each leaf as NICs below it: nobody is told apart by where leaves end, and
    # leaving such links out of what is shared moves no rank by a picosecond.
    pods = {"leaves_per_pod": 8 if fabric == "rail" else 2} if fabric == "fat_tree" else {}
    where = jobs.topology(16, fabric=fabric, nodes_per_leaf=2, **pods)
    assert where.is_never_full.any()
    folded = jobs.run(job(), where, fold=True)
    monkeypatch.setattr(Topology, "is_never_full", np.zeros(len(where.links), dtype=bool))
    shared = jobs.topology(16, fabric=fabric, nodes_per_leaf=2, **pods)
    assert len(folded.times) <= len(jobs.run(job(), shared, fold=True).times)
    same(folded, jobs.run(job(), shared, fold=False), job().world_size)


def test_classes_do_not_grow_with_leaves():
    # Twelve replicas of three pipeline stages, four ranks of tensor parallelism each: stages begin in the
    # middle of a leaf.  With room above the leaves as many classes as with one leaf; with half of it, more.
    graph = jobs.pipeline(jobs.one_f_one_b(3, 4), tp=4, dp=12)
    one = len(both(graph, jobs.topology(18, fabric="leaf_spine", nodes_per_leaf=18)).times)
    assert len(both(graph, jobs.topology(18, fabric="leaf_spine", nodes_per_leaf=4)).times) == one
    blocking = jobs.topology(18, fabric="leaf_spine", nodes_per_leaf=4, spine_oversubscription=2.0)
    assert len(both(graph, blocking).times) > one


def test_nics_that_gpus_share():
    folded = both(jobs.dense_3d(), jobs.topology(16, nics_per_node=2))
    assert folded.step_ps > jobs.run(jobs.dense_3d(), jobs.topology(16), fold=True).step_ps
    assert len(folded.times) < 128


@pytest.mark.parametrize("fabric", ["rail", "leaf_spine"])
def test_ports_of_gpus_on_the_way(fabric):
    assert len(both(jobs.across_rails(), jobs.topology(2, fabric=fabric)).times) < 16
    # The same with every port of one GPU that others pass through slowed down.
    slow = {f"nvlink.3.{way}.bytes_per_s": 20e9 for way in ("in", "out")}
    both(jobs.across_rails(), jobs.topology(2, fabric=fabric, link_overrides=slow))


def test_a_job_on_part_of_its_last_node():
    graph = jobs.pipeline(jobs.one_f_one_b(3, 4), tp=2, dp=2)  # 12 ranks: the second node is half empty
    folded = both(graph, jobs.topology(2))
    assert len(folded.times) < graph.world_size


def test_a_slow_gpu_refines_only_what_it_touches():
    where = jobs.topology(16)
    graph = jobs.dense_3d()  # rank = tp + 8 * (dp + 4 * pp)
    variants = jobs.slow_ranks(where, graph.world_size, 1.3, [37])
    folded = both(graph, where, variants)
    # Rank 37 has tp 5, dp 0, pp 1.  In each stage ranks differ by whether they share its tp group, its dp
    # group, both or neither: at most 16 classes.
    assert 4 < len(folded.times) <= 16
    assert folded.class_of[37] not in np.delete(folded.class_of, 37)
    assert folded.step_ps > jobs.run(graph, where, fold=True).step_ps


def test_a_broken_nic_refines_only_what_it_touches():
    broken = {"nic.3.2.out.bytes_per_s": 5e9}
    folded = both(jobs.data_parallel(), jobs.topology(8, link_overrides=broken))
    # Nodes 0 and 7 are the roots of the two trees, rank 26 has the broken NIC, all others are alike.
    middle = [2 if rank == 26 else 1 for rank in range(8, 56)]
    assert folded.class_of.tolist() == [0] * 8 + middle + [0] * 8
    healthy = jobs.run(jobs.data_parallel(), jobs.topology(8), fold=True)
    assert folded.step_ps > healthy.step_ps


def test_a_link_that_nobody_uses_refines_nothing():
    # Pure tensor parallelism within nodes never leaves them: a broken NIC affects nobody.
    graph = jobs.pipeline(jobs.one_f_one_b(1, 2), tp=8, dp=1)
    where = jobs.topology(1, link_overrides={"nic.0.3.in.bytes_per_s": 1e9})
    folded = both(graph, where)
    assert folded.step_ps == jobs.run(graph, jobs.topology(1), fold=True).step_ps
    assert len(folded.times) == 1


@pytest.mark.parametrize(
    "port", ["nvlink.{gpu}.in", "nvlink.{gpu}.out", "nic.{node}.{local}.in", "nic.{node}.{local}.out"]
)
@pytest.mark.parametrize(("attribute", "value"), [("bytes_per_s", 3e9), ("latency_s", 200e-6)])
@pytest.mark.parametrize("job", [jobs.across_rails, jobs.pairs_across_rails])
@pytest.mark.parametrize("fabric", ["rail", "leaf_spine"])
def test_any_port_of_any_gpu_may_be_slow(fabric, job, port, attribute, value):
    # Members or not: whoever passes the port is refined, and the run stays exact.  GPUs of a node are alike.
    for gpu in (4, 9):
        link = port.format(gpu=gpu, node=gpu // 8, local=gpu % 8)
        both(job(), jobs.topology(2, fabric=fabric, link_overrides={f"{link}.{attribute}": value}))


def test_extra_latency_of_one_node():
    slow = {f"nic.5.{n}.{way}.latency_s": 80e-6 for n in range(8) for way in ("in", "out")}
    folded = both(jobs.dense_3d(), jobs.topology(16, link_overrides=slow))
    assert folded.step_ps > jobs.run(jobs.dense_3d(), jobs.topology(16), fold=True).step_ps
    assert len(folded.times) < 64


def test_256_ranks_of_everything():
    graph = jobs.pipeline(jobs.one_f_one_b(4, 4), tp=8, dp=8)
    assert graph.world_size == 256
    where = jobs.topology(32, nodes_per_leaf=4, spine_oversubscription=2.0)
    assert len(both(graph, where).times) <= 16


def test_noise_unfolds_and_is_reproducible():
    graph, where = jobs.data_parallel(16), jobs.topology(2)

    def noisy(seed):
        cost = TableCost(jobs.KERNELS)
        return simulate(graph, where, cost, NcclPlanner(where), noise=Noise(0.05, seed))

    first, again, other = noisy(1), noisy(1), noisy(2)
    assert len(first.times) == 16
    assert first.warnings == ("noise makes every rank different: nothing was folded",)
    assert first.step_ps == again.step_ps != other.step_ps
    # 18 kernels of mean factor 1 on each of 16 ranks: the slowest rank sets the pace.
    assert first.step_ps > jobs.run(graph, where, fold=True).step_ps


@pytest.mark.parametrize(("sigma", "seed"), [(-0.1, 0), (float("nan"), 0), (2.0, 0), (0.1, -1)])
def test_noise_out_of_range(sigma, seed):
    with pytest.raises(InputError, match="noise"):
        Noise(sigma, seed)


def test_classes_are_equitable():
    # What the definition asks for: ranks of a class have the same multiset of (class of group, role).
    where = jobs.topology(16, nodes_per_leaf=2, spine_oversubscription=4.0)
    parts = partition(jobs.dense_3d(), where, NcclPlanner(where))
    seen = [[] for _ in range(128)]
    for number, (relation, classes) in enumerate(zip(parts.relations, parts.instance_class, strict=True)):
        for instance, members in enumerate(relation.members.tolist()):
            for position, rank in enumerate(members):
                end = position if relation.delta else 0
                seen[rank].append(
                    (number, int(classes[instance]), int(relation.role[instance, position]), end)
                )
    by_class = {}
    for rank, found in enumerate(seen):
        by_class.setdefault(int(parts.class_of[rank]), set()).add(tuple(sorted(found)))
    assert all(len(signatures) == 1 for signatures in by_class.values())
