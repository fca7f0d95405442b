"""Whole steps against closed forms."""

import pytest

from simcore.errors import InputError
from simcore.graph import GraphBuilder, external
from simcore.graph.schedules import gpipe, one_f_one_b
from simcore.hardware import load_cluster
from simcore.run import Setup
from simcore.run import run as simulated
from tests.engine.lab import US, C, K, cluster, end_us, run
from tests.pipelines import pipeline_graph

F, B = 30 * US, 70 * US


@pytest.mark.parametrize("schedule", [gpipe, one_f_one_b])
@pytest.mark.parametrize(("stages", "microbatches"), [(1, 3), (2, 1), (4, 8), (6, 4), (8, 16)])
def test_equal_stages_take_m_plus_p_minus_1(schedule, stages, microbatches):
    # (m + p - 1)(F + B) for both schedules when sending costs nothing (arXiv 2104.04473, section 2.2).
    graph = pipeline_graph(schedule(stages, microbatches), forward=F, backward=B, num_bytes=1)
    result = run(graph, transfers={1: C()})
    assert result.step_ps == (microbatches + stages - 1) * (F + B)


def test_sends_lengthen_the_fill_and_the_flush():
    # One microbatch on 3 stages, 5 us a send: 3F + 3B + 4 sends.
    graph = pipeline_graph(gpipe(3, 1), forward=F, backward=B, num_bytes=1)
    assert run(graph, transfers={1: C(us=5)}).step_ps == 3 * F + 3 * B + 4 * 5 * US


def test_tensor_parallel_copies_of_a_pipeline_do_not_disturb_each_other():
    schedule = one_f_one_b(3, 5)
    alone = run(pipeline_graph(schedule, forward=F, backward=B, num_bytes=1), transfers={1: C(us=5)})
    copies = run(pipeline_graph(schedule, forward=F, backward=B, num_bytes=1, tp=2), transfers={1: C(us=5)})
    assert copies.step_ps == alone.step_ps
    for stage in range(3):
        for copy in range(2):
            assert (copies.times[2 * stage + copy].end_ps == alone.times[stage].end_ps).all()


def data_parallel(buckets: int):
    """Backward in equal kernels; bucket i is reduced when kernel i has ended; the optimizer waits for all."""
    build = GraphBuilder(2, name="ddp")
    build.group("dp", ((2, 1),))
    bwd = build.template("bwd")
    reduced = []
    for _ in range(buckets):
        done = bwd.compute("bwd", recorded_ps=100 * US)
        reduced.append(bwd.collective("all_reduce", "dp", 1, waits=(done,)))
    optimizer = build.template("optimizer")
    optimizer.compute("adam", recorded_ps=10 * US, waits=(external("dp"),))
    build.program([0, 1], [(bwd, 0, 0), (optimizer, -1, 0)])
    return build.build()


def test_all_reduce_hides_behind_backward_but_for_the_last_bucket():
    # Four kernels of 100 us, each bucket's all_reduce takes 100 us and no SMs: the last one is exposed.
    result = run(data_parallel(4), transfers={1: C(us=100)})
    assert result.step_ps == (400 + 100 + 10) * US


def test_an_all_reduce_longer_than_backward_queues_on_its_stream():
    # 150 us each, one after the other from 100 us on: 100 + 4 * 150 + 10.
    result = run(data_parallel(4), transfers={1: C(us=150)})
    assert result.step_ps == (100 + 600 + 10) * US


def test_gradient_all_reduce_and_pipeline_send_share_a_nic():
    # 100 MB and 50 MB over one NIC of 50 GB/s from 0 on: 25 GB/s each until the send ends at 2 ms, then 50
    # MB are left of the all_reduce at 50 GB/s: 3 ms.
    build = GraphBuilder(2, name="shared nic")
    build.group("pp", ((2, 1),))
    build.group("self", ((1, 1),))
    head, tail = build.template("bwd"), build.template("bwd")
    head.send("pp", 1, 50)
    head.collective("all_reduce", "self", 100)
    tail.recv("pp", -1, 50)
    build.program([0], [(head, 0, 0)])
    build.program([1], [(tail, 0, 0)])
    nic = (("nic.0.0.out", 1.0),)
    result = run(build.build(), transfers={50: C(volume=50e6, links=nic), 100: C(volume=100e6, links=nic)})
    assert end_us(result, 0) == 2000.0
    assert end_us(result, 1) == 3000.0


def test_link_counters_are_a_step_function_of_what_flows():
    build = GraphBuilder(1, name="counter")
    build.group("self", ((1, 1),))
    template = build.template("fwd")
    template.compute("wait", recorded_ps=10 * US)
    template.collective("all_reduce", "self", 1, stream="compute")
    build.program([0], [(template, 0, 0)])
    # 1 MB at 50 GB/s after 10 us and 5 us of latency: from 15 to 35 us.
    result = run(build.build(), transfers={1: C(us=5, volume=1e6, links=(("nic.0.0.out", 1.0),))})
    link = result.resources.index("nic.0.0.out")
    picked = [
        (int(t), float(v))
        for t, r, v in zip(
            result.counters.time_ps, result.counters.resource, result.counters.value, strict=True
        )
        if r == link
    ]
    assert picked == [(15 * US, pytest.approx(50e9)), (35 * US, 0.0)]


def test_a_batch_of_send_and_recv_is_one_launch_and_cannot_deadlock():
    # Both ranks send and receive in one NCCL group on one stream; the 20 us send and the 30 us recv overlap.
    build = GraphBuilder(2, name="exchange")
    build.group("pp", ((2, 1),))
    left, right = build.template("fwd"), build.template("fwd")
    left.send("pp", 1, 20, batch=0)
    left.recv("pp", 1, 30, batch=0)
    right.send("pp", 1, 30, batch=0)
    right.recv("pp", 1, 20, batch=0)
    build.program([0], [(left, 0, 0)])
    build.program([1], [(right, 0, 0)])
    result = run(build.build(), transfers={20: C(us=20), 30: C(us=30)})
    assert [end_us(result, op) for op in (0, 1)] == [20.0, 30.0]


def test_calls_of_a_group_share_its_channels():
    # Eight calls of 24 channels in one launch hold 32 SMs, not 132: the GEMM beside them keeps 100.  Three of
    # 4 hold 12.
    for calls, channels, held in ((8, 24, 32), (3, 4, 12), (2, 64, 64)):
        build = GraphBuilder(1, name="coalesced")
        build.group("self", ((1, 1),))
        template = build.template("bwd")
        for _ in range(calls):
            template.collective("all_gather", "self", 1, batch=0)
        template.compute("gemm")
        build.program([0], [(template, 0, 0)])
        result = run(build.build(), {"gemm": K(100)}, {1: C(us=1e6, channels=channels)})
        assert end_us(result, calls) == pytest.approx(100 * 132 / (132 - held), abs=1e-6)


def test_compute_beside_communication_with_k_sms_taken():
    for taken in (0, 1, 8, 24, 66, 131):
        build = GraphBuilder(1, name="k sms")
        build.group("self", ((1, 1),))
        template = build.template("bwd")
        template.collective("all_reduce", "self", 1)
        template.compute("gemm")
        build.program([0], [(template, 0, 0)])
        result = run(build.build(), {"gemm": K(100)}, {1: C(us=1e6, channels=taken)})
        assert end_us(result, 1) == pytest.approx(100 * 132 / (132 - taken), abs=1e-6)


def test_world_larger_than_the_cluster_is_refused():
    graph = pipeline_graph(gpipe(2, 1), forward=F, backward=B, num_bytes=1, tp=8)
    with pytest.raises(InputError, match="16 ranks but the cluster has 8 GPUs"):
        run(graph, transfers={1: C()}, topology=cluster(1))


@pytest.mark.parametrize("recorded_ps", [0, 5 * US])
def test_a_collective_with_a_recorded_time_lasts_that_long_whatever_nccl_would_do(recorded_ps):
    # Two all_reduces in a row on 16 GPUs of two nodes, whose plan has waits between its steps.
    build = GraphBuilder(16, name="recorded")
    build.group("dp", dims=((16, 1),))
    template = build.template("step")
    for _ in range(2):
        template.collective("all_reduce", "dp", 1 << 17, recorded_ps=recorded_ps)
    build.program(range(16), [(template, 0, 0)])
    for shortcuts in (frozenset[str](), None):
        result = simulated(build.build(), load_cluster("h100-16"), Setup(shortcuts=shortcuts)).result
        times = result.times_of(3)
        assert (times.end_ps - times.start_ps).tolist() == [recorded_ps, recorded_ps]
