"""What nccl-tests reports: calls in a loop overlap, and a thread with eight GPUs launches in turn."""

from __future__ import annotations

import pytest

from simcore.apps.measured.nccl_loop import Loop, host_us, loop_of, reported_us
from simcore.collectives import NcclPlanner
from simcore.hardware import Topology, load_cluster
from simcore.units import KIB, MIB, PS_PER_US

CLUSTER = load_cluster("h800-8")
PLANNER = NcclPlanner(Topology(CLUSTER))
NODE = tuple(range(8))


def test_words_of_a_row_say_how_it_was_measured() -> None:
    assert loop_of("float; out-of-place") == Loop(calls=20, gpus_per_thread=1)
    assert loop_of("8x H800, nccl 2.18.3, -t1 -g8") == Loop(calls=20, gpus_per_thread=8)
    assert loop_of("nccl-tests -t N single process") == Loop()
    assert loop_of("all_reduce_perf -b 8 -g 2 -n 100") == Loop(calls=100, gpus_per_thread=2)
    assert loop_of("single node, NVLS; iters 2") == Loop(calls=2)
    assert loop_of("median of torch-profiler kernel times") == Loop(calls=1)
    # A folder's name or an option of another program is no option of nccl-tests.
    assert loop_of("my-g8 run, --g 4") == Loop()


def test_a_chain_hides_its_hops_behind_the_next_call() -> None:
    plan = PLANNER.plan("broadcast", 16 * MIB, NODE)
    assert plan.between_ps > 0
    alone_us, hidden_us = plan.alone_ps / PS_PER_US, plan.between_ps / PS_PER_US
    assert reported_us(plan, CLUSTER.gpu, Loop(calls=1)) == pytest.approx(alone_us)
    assert reported_us(plan, CLUSTER.gpu, Loop(calls=20)) == pytest.approx(alone_us - hidden_us * 19 / 20)


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_where_everybody_needs_everybody_nothing_overlaps(collective: str) -> None:
    plan = PLANNER.plan(collective, 16 * MIB, NODE)
    assert reported_us(plan, CLUSTER.gpu, Loop()) == pytest.approx(plan.alone_ps / PS_PER_US)


def test_one_thread_launches_eight_kernels_one_after_the_other() -> None:
    # 8 x (3.3 us a launch + 0.15 us a channel).
    assert host_us(1, CLUSTER.gpu, Loop(gpus_per_thread=8)) == pytest.approx(8 * (3.3 + 0.15))
    assert host_us(16, CLUSTER.gpu, Loop(gpus_per_thread=8)) == pytest.approx(8 * (3.3 + 2.4))
    assert host_us(16, CLUSTER.gpu, Loop()) == 0


@pytest.mark.parametrize(
    ("num_bytes", "measured_us"),
    # 8 H800, one process and thread, NCCL 2.18.3 (public GitHub file id 24836070500): the host's launches
    # up to 4 MiB, the bandwidth from there on.
    [
        (64, 27.0), (8 * KIB, 25.7), (128 * KIB, 29.6), (512 * KIB, 43.3), (2 * MIB, 43.7), (4 * MIB, 45.1),
        (8 * MIB, 69.5), (32 * MIB, 226.2), (1024 * MIB, 6520.1),
    ],
)  # fmt: skip
def test_broadcasts_of_eight_h800(num_bytes: int, measured_us: float) -> None:
    planner = NcclPlanner(Topology(load_cluster("h800-8", {"cluster.nccl_version": "2.18.3"})))
    plan = planner.plan("broadcast", num_bytes, NODE)
    assert reported_us(plan, CLUSTER.gpu, Loop(gpus_per_thread=8)) == pytest.approx(measured_us, rel=0.2)
