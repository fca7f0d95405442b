"""Worked examples of sharing a GPU and its links; S = 132 SMs, HBM 3.35 TB/s, launches cost nothing.

Every figure is derived in the comment beside it.  Each simulation also runs without coalescing and must
give the same times to the picosecond (see lab.run).
"""

import pytest

from simcore.errors import InputError
from simcore.graph import Graph, GraphBuilder
from tests.engine.lab import US, C, K, cluster, end_us, run, single


def beside(*transfers: int, kernels: tuple[str, ...] = ("kernel",), delayed: tuple[str, ...] = ()) -> Graph:
    """One rank: ``kernels`` on stream compute; each transfer on a stream of its own, after a delay kernel."""
    build = single()
    template = build.template("fwd")
    for i, size in enumerate(transfers):
        waits = ()
        if i < len(delayed) and delayed[i]:
            waits = (template.compute(delayed[i], stream=f"delay{i}"),)
        template.collective("all_reduce", "self", size, stream=f"comm{i}", waits=waits)
    for name in kernels:
        template.compute(name)
    build.program([0], [(template, 0, 0)])
    return build.build()


def last_end_us(result):
    return end_us(result, len(result.times[0].end_ps) - 1)


@pytest.mark.parametrize(
    ("kernel", "channels", "expected"),
    [
        # 1. Persistent, 100 us alone on 132 SMs, 16 taken throughout.
        (K(100, blocks=132), 16, 200.0),  # static: 116 blocks at once, 16 after them: 2 waves
        (K(100), 16, 100 * 132 / 116),  # dynamic: the tiles spread over 116 SMs: 113.793 us
        # 2. 1320 blocks, occupancy 1: 10 waves of 10 us alone.
        (K(100, blocks=1320), 16, 120.0),  # ceil(1320 / 116) = 12 waves
        (K(100, blocks=1320), 1, 110.0),  # ceil(1320 / 131) = 11 waves
        (K(100, blocks=1320), 0, 100.0),
        # Two blocks an SM: 2640 blocks in ceil(2640 / 232) = 12 waves of 10 us.
        (K(100, blocks=2640, occ=2), 16, 120.0),
        # A grid smaller than what is left is not disturbed.
        (K(100, blocks=64), 16, 100.0),
    ],
)
def test_sms_held_throughout(kernel, channels, expected):
    result = run(beside(1), {"kernel": kernel}, {1: C(1000, channels)})
    assert last_end_us(result) == pytest.approx(expected, abs=1e-6)  # to the picosecond


@pytest.mark.parametrize(("name", "wait_us"), [("a100-8", 12.0), ("h800-96", 0.0)])
def test_kernels_that_begin_while_data_moves_wait_for_writes(name, wait_us):
    # Four kernels of 100 us.  A transfer that is called at 150 us moves from 155 to 255 us.  The second
    # kernel began before, the third begins at 200 us: Ampere has one domain of writes, Hopper NCCL's own.
    graph = beside(1, kernels=("kernel",) * 4, delayed=("delay",))
    kernels = {"kernel": K(100, blocks=64), "delay": K(150, blocks=1)}
    transfer = C(5, volume=1e6, bytes_per_s=1e10, hbm_per_byte=2.0)
    result = run(graph, kernels, {1: transfer}, topology=cluster(name=name))
    assert result.times[0].end_ps[-4:].tolist() == [
        round(us * US) for us in (100, 200, 300 + wait_us, 400 + wait_us)
    ]


def test_memory_bound_kernel_gets_what_the_communication_leaves():
    # 3. 335 MB, 100 us alone; the transfer moves 0.3 TB/s and costs 2 HBM bytes a byte: 335e6 / 2.75e12.
    transfer = C(channels=0, volume=1e9, bytes_per_s=0.3e12, hbm_per_byte=2.0)
    result = run(beside(1), {"kernel": K(hbm_bytes=335_000_000)}, {1: transfer})
    assert last_end_us(result) == pytest.approx(335e6 / 2.75e12 * 1e6, abs=1e-6)
    assert last_end_us(result) == pytest.approx(121.818, abs=5e-4)


def fluid(us: float) -> K:
    return K(us)


def test_part_of_the_time():
    # 4. 12 of 132 SMs from 40 to 90 us: 40 us done, 50 * 120/132 = 45.4545 us done, 14.5455 us are left at
    # 90 us.
    graph = beside(1, delayed=("wait40",))
    kernels = {"kernel": fluid(100), "wait40": K(fixed_us=40)}
    # The delay kernel shares the GPU only in name: it takes no SMs and no bytes.
    result = run(graph, kernels, {1: C(50, 12)})
    assert last_end_us(result) == pytest.approx(40 + 50 + (100 - 40 - 50 * 120 / 132), abs=1e-6)
    assert last_end_us(result) == pytest.approx(104.545, abs=5e-4)


def test_waiting_costs_too():
    # 5. Rank 1 arrives at 500 us.  The transfer of 200 us ends at 700 on both ranks; rank 0's 600 us of work
    # run on 120 of 132 SMs from 0 on: 600 * 132/120 = 660 us.
    build = GraphBuilder(2, name="late")
    build.group("tp", ((2, 1),))
    early, late = build.template("fwd"), build.template("fwd")
    early.collective("all_reduce", "tp", 1)
    early.compute("kernel")
    ready = late.compute("wait500")
    late.collective("all_reduce", "tp", 1, waits=(ready,))
    build.program([0], [(early, 0, 0)])
    build.program([1], [(late, 0, 0)])
    result = run(build.build(), {"kernel": fluid(600), "wait500": K(fixed_us=500)}, {1: C(200, 12)})
    assert end_us(result, 0, rank=0) == 700.0
    assert end_us(result, 1, rank=1) == 700.0
    assert end_us(result, 1, rank=0) == 660.0
    assert result.times[0].ready_ps[0] == 0
    assert result.times[0].start_ps[0] == 500 * US  # a collective starts when its last rank arrives


def test_two_flows_on_one_nic():
    # 6. 100 MB at 0 and at 1 ms on 50 GB/s.  A alone for 1 ms: 50 MB.  Then 25 GB/s each: A's other 50 MB
    # take 2 ms (ends at 3 ms); B has 50 MB left then and the NIC to itself: 1 ms more.
    nic = (("nic.0.0.out", 1.0),)
    graph = beside(1, 2, kernels=(), delayed=("", "wait1ms"))
    result = run(
        graph, {"wait1ms": K(fixed_us=1000)}, {1: C(volume=100e6, links=nic), 2: C(volume=100e6, links=nic)}
    )
    ends = result.times[0].end_ps
    assert ends[0] == 3000 * US
    assert ends[2] == 4000 * US


def test_three_kernels():
    # 8. 124/132 for 25 us, 116/132 for 25, 124/132 for 25: 23.4848 + 21.9697 + 23.4848 done at 75 us, the
    # rest alone.
    graph = beside(1, 2, delayed=("", "wait25"))
    result = run(graph, {"kernel": fluid(100), "wait25": K(fixed_us=25)}, {1: C(50, 8), 2: C(50, 8)})
    done = 25 * 124 / 132 + 25 * 116 / 132 + 25 * 124 / 132
    assert last_end_us(result) == pytest.approx(75 + 100 - done, abs=1e-6)
    assert last_end_us(result) == pytest.approx(106.061, abs=5e-4)


def test_copy_engine_beside_a_gemm_limited_by_sms():
    # 9. The copy takes HBM (200 MB read and written in 200 us: 2 TB/s) but no SMs; the GEMM draws 0.5 TB/s.
    build = single()
    template = build.template("fwd")
    template.memcpy("copy", 200_000_000, stream="copies")
    template.compute("gemm")
    build.program([0], [(template, 0, 0)])
    kernels = {"copy": K(200, hbm_bytes=400_000_000), "gemm": K(100, hbm_bytes=50_000_000)}
    result = run(build.build(), kernels)
    assert end_us(result, 1) == 100.0
    assert end_us(result, 0) == 200.0


def test_blocks_are_placed_when_sms_fall_free():
    # 10 waves of 10 us fill the GPU.  A transfer of 20 us with 12 channels is ready at 15 us: its blocks
    # are placed when the second wave retires, at 20 us, and hold their SMs until 40 us.  By then 2 waves of
    # 132 and 2 of 120 blocks have run: 1320 - 504 = 816 blocks are left, ceil(816 / 132) = 7 waves: 110 us.
    graph = beside(1, delayed=("wait15",))
    result = run(graph, {"kernel": K(100, blocks=1320), "wait15": K(fixed_us=15)}, {1: C(20, 12)})
    times = result.times[0]
    assert times.ready_ps[1] == 15 * US
    assert times.start_ps[1] == 20 * US
    assert times.end_ps[1] == 40 * US
    assert last_end_us(result) == 110.0


def test_a_persistent_kernel_gives_no_sm_up_before_it_ends():
    # 132 static blocks of 100 us each.  The transfer is ready at 30 us and starts at 100 us; the next
    # kernel finds 120 SMs from 100 to 150 us: 12 of its blocks start at 150 us and end at 250 us.
    graph = beside(1, delayed=("wait30",), kernels=("kernel", "kernel"))
    result = run(graph, {"kernel": K(100, blocks=132), "wait30": K(fixed_us=30)}, {1: C(50, 12)})
    times = result.times[0]
    assert times.start_ps[1] == 100 * US
    assert end_us(result, 2) == 100.0
    assert last_end_us(result) == 250.0


def test_communication_slows_when_compute_saturates_hbm():
    # Two demands of 2.5 TB/s on 3.35 TB/s of HBM: fair shares 1.675 each.  The kernel's 335 MB take 200 us;
    # the transfer (1 HBM byte a byte, 500 MB: 200 us alone) has moved 335 MB by then, the rest at 2.5 TB/s:
    # 66 us.
    transfer = C(volume=500e6, bytes_per_s=2.5e12, hbm_per_byte=1.0)
    result = run(beside(1), {"kernel": K(us=134, hbm_bytes=335_000_000)}, {1: transfer})
    assert last_end_us(result) == pytest.approx(200.0, abs=1e-6)
    assert end_us(result, 0) == pytest.approx(200 + 165e6 / 2.5e12 * 1e6, abs=1e-6)


def test_two_kernels_take_sms_in_order_of_arrival():
    # A has 66 blocks of 100 us and leaves 66 SMs.  B has 132 blocks of 50 us: 66 at once, 66 after them:
    # 100 us.
    build = single()
    template = build.template("fwd")
    template.compute("a", stream="one")
    template.compute("b", stream="two")
    build.program([0], [(template, 0, 0)])
    result = run(build.build(), {"a": K(100, blocks=66), "b": K(50, blocks=132)})
    assert end_us(result, 0) == 100.0
    assert end_us(result, 1) == 100.0


def test_alphabeta_network_ignores_sharing():
    nic = (("nic.0.0.out", 1.0),)
    graph = beside(1, 2, kernels=())
    transfers = {1: C(volume=100e6, links=nic), 2: C(us=5, volume=100e6, links=nic)}
    result = run(graph, {}, transfers, network="alphabeta")
    assert end_us(result, 0) == 2000.0
    assert end_us(result, 1) == 2005.0


def test_a_link_without_bandwidth_is_named():
    topology = cluster(link_overrides={"nic.0.0.out.bytes_per_s": 0.0})
    with pytest.raises(InputError, match=r"nic\.0\.0\.out"):
        run(beside(1, kernels=()), {}, {1: C(volume=1.0, links=(("nic.0.0.out", 1.0),))}, topology=topology)
