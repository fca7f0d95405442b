"""The host: launches take time, the queue is bounded, synchronisation blocks."""

import pytest

from simcore.engine.launches import QUEUE_DEPTH
from simcore.graph import GraphBuilder
from tests.engine.lab import US, C, cluster, end_us, run


def kernels(count: int, us: float, *, sync_after: int | None = None):
    build = GraphBuilder(1, name="kernels")
    template = build.template("fwd")
    for i in range(count):
        template.compute("k", recorded_ps=round(us * US))
        if i == sync_after:
            template.sync("compute")
    build.program([0], [(template, 0, 0)])
    return build.build()


@pytest.mark.parametrize(
    ("us", "expected"),
    [
        # Launch calls take 5 us, a launch reaches an idle stream after 8 us.
        (2.0, 8 + 9 * 5 + 2),  # host-bound: the 10th launch is issued at 45 us
        (50.0, 8 + 10 * 50),  # GPU-bound: kernels follow back to back
        (5.0, 8 + 10 * 5),
    ],
)
def test_launch_overhead(us, expected):
    result = run(kernels(10, us), topology=cluster(launch_us=5, latency_us=8))
    assert result.step_ps == expected * US


def test_synchronisation_exposes_the_launch_latency():
    # 5 kernels end at 8 + 250 us; the host goes on then, the 6th starts 8 us later.
    result = run(kernels(10, 50, sync_after=4), topology=cluster(launch_us=5, latency_us=8))
    assert result.step_ps == (8 + 250 + 8 + 250) * US
    times = result.times[0]
    assert times.start_ps[5] == 25 * US  # after five launch calls the host waits ...
    assert times.end_ps[5] == 258 * US  # ... until the fifth kernel has ended


def test_the_launch_queue_is_bounded():
    # A collective on a stream of its own, issued behind 2000 kernels of 100 us: it can be launched once
    # fewer than the queue's depth are outstanding, so not before (2000 - depth) kernels have ended.
    build = GraphBuilder(1, name="queue")
    build.group("self", ((1, 1),))
    template = build.template("fwd")
    for _ in range(2000):
        template.compute("k", recorded_ps=100 * US)
    template.collective("all_reduce", "self", 1)
    build.program([0], [(template, 0, 0)])
    result = run(build.build(), transfers={1: C(us=1)}, topology=cluster(launch_us=1, latency_us=1))
    start = result.times[0].start_ps[2000] / (100 * US)
    assert 2000 - QUEUE_DEPTH <= start <= 2000 - QUEUE_DEPTH + 512


def test_host_work_delays_later_launches():
    build = GraphBuilder(1, name="host")
    template = build.template("fwd")
    template.compute("k", recorded_ps=10 * US)
    template.host("data loader", 300 * US)
    template.compute("k", recorded_ps=10 * US)
    build.program([0], [(template, 0, 0)])
    result = run(build.build(), topology=cluster(launch_us=5, latency_us=8))
    # The second launch call begins at 5 + 300 us and reaches the GPU 8 us later.
    assert result.times[0].start_ps[2] == 313 * US


def test_a_fused_launch_costs_one_call():
    build = GraphBuilder(2, name="batch")
    build.group("pp", ((2, 1),))
    for rank in range(2):
        template = build.template("fwd")
        template.send("pp", 1, 1, batch=0)
        template.recv("pp", 1, 1, batch=0)
        template.compute("k", recorded_ps=US)
        build.program([rank], [(template, 0, 0)])
    result = run(build.build(), transfers={1: C(us=1)}, topology=cluster(launch_us=5, latency_us=8))
    assert result.times[0].start_ps[2] == 13 * US  # one launch call before it
    assert end_us(result, 0) == 9.0


def test_a_disturbed_run_that_launches_limit():
    # Kernels of 2 us arrive every 5 us; the transfer holds SMs from 12 to 62 us: kernels take 2 * 132/120
    # us meanwhile.
    build = GraphBuilder(1, name="disturbed")
    build.group("self", ((1, 1),))
    template = build.template("fwd")
    template.collective("all_reduce", "self", 1, stream="comm")
    for _ in range(12):
        template.compute("k", recorded_ps=2 * US)
    build.program([0], [(template, 0, 0)])
    result = run(
        build.build(), transfers={1: C(us=50, channels=12)}, topology=cluster(launch_us=5, latency_us=8)
    )
    # The transfer starts at 8 us, ends at 58; kernel i is launched at 13 + 5 i us.
    starts = [13 + 5 * i for i in range(12)]
    ends = [s + (2.2 if s + 2.2 <= 58 else 2.0) for s in starts]
    assert [end_us(result, 1 + i) for i in range(12)] == pytest.approx(ends, abs=1e-6)


def test_a_rank_that_only_works_on_its_host():
    build = GraphBuilder(2, name="host only")
    idle, busy = build.template("fwd"), build.template("fwd")
    idle.host("data loader", 300 * US)
    busy.compute("k", recorded_ps=10 * US)
    build.program([0], [(idle, 0, 0)])
    build.program([1], [(busy, 0, 0)])
    result = run(build.build(), topology=cluster(launch_us=5, latency_us=8))
    assert result.times_of(0).end_ps.tolist() == [300 * US]
    assert result.times_of(1).end_ps.tolist() == [18 * US]
    assert result.step_ps == 300 * US


def test_a_rank_that_does_nothing():
    build = GraphBuilder(1, name="nothing")
    build.program([0], [])
    assert run(build.build()).step_ps == 0
