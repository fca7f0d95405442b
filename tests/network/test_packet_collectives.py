"""Collectives on the packet network against closed forms, on wires with round numbers."""

from dataclasses import replace

import pytest

from simcore.apps.studies.wire import wire_plan
from simcore.clock import Clock
from simcore.collectives import collective_named
from simcore.errors import InputError
from simcore.network import Flow, FluidNetwork
from simcore.network.packet import PacketSettings, program_of
from tests.network.packet_fabric import MB, planner, run, topology


def test_send_recv_takes_bytes_over_rate_plus_latency():
    fabric = topology(2, latency_s=2e-6)
    plan = planner(fabric).plan_p2p(10 * MB, 0, 4)
    # 10 MB at 10 GB/s = 1000 us, 2 us on the same rail.
    assert run(fabric, plan)[0] == [pytest.approx(1002.0, abs=0.01)]


def test_send_recv_across_rails_goes_over_the_neighbour():
    fabric = topology(2, latency_s=2e-6)
    plan = planner(fabric).plan_p2p(10 * MB, 0, 5)
    (end,), network = run(fabric, plan)
    assert end == pytest.approx(1004.0, rel=2e-3)  # NVLink to GPU 1 first, cut through: 2 us more
    assert network.link_bytes()[fabric.nvlink_out(0)] == 10 * MB
    assert network.link_bytes()[fabric.nic_out(1)] == 10 * MB


def test_two_sends_into_one_nic_take_twice_as_long():
    fabric = topology(3)
    plans = [planner(fabric).plan_p2p(10 * MB, src, 8) for src in (0, 4)]
    ends, _ = run(fabric, *plans)
    assert max(ends) == pytest.approx(2000.0, rel=1e-3)  # 20 MB into one port of 10 GB/s
    assert min(ends) == pytest.approx(2000.0, rel=1e-2)  # the two take turns


@pytest.mark.parametrize(
    ("collective", "shares"), [("all_reduce", 6), ("all_gather", 3), ("reduce_scatter", 3)]
)
def test_a_ring_moves_its_share_and_no_more(collective, shares):
    fabric = topology()
    plan = planner(fabric).plan(collective, 40 * MB, range(4))
    (end,), network = run(fabric, plan)
    # n - 1 = 3 steps of 10 MB, twice for all_reduce: 10 MB at 100 GB/s = 100 us.
    assert end == pytest.approx(100.0 * shares, rel=2e-3)
    assert network.link_bytes()[fabric.nvlink_out(2)] == pytest.approx(10 * MB * shares, abs=4)


def test_a_small_ring_pays_every_steps_latency():
    fabric = topology(latency_s=5e-6)
    plan = planner(fabric).plan("all_reduce", 4096, range(4))
    assert run(fabric, plan)[0] == [pytest.approx(6 * 5.0, rel=5e-3)]  # 2 (n - 1) steps of 5 us


def test_a_tree_is_faster_than_a_ring_where_latency_counts():
    fabric = topology(8, latency_s=5e-6)
    ends = [
        run(fabric, planner(fabric, algorithm).plan("all_reduce", 4096, range(32)))[0][0]
        for algorithm in ("ring", "tree")
    ]
    # Ring: 62 hops of 5 us.  Tree: 3 in the node and 3 between 8 nodes, up and down: 12.
    assert ends == [pytest.approx(310.0, rel=0.02), pytest.approx(60.0, rel=0.02)]


@pytest.mark.parametrize(
    ("algorithm", "collective"),
    [("ring", "all_reduce"), ("tree", "all_reduce"), ("ring", "broadcast"), ("ring", "all_to_all")],
)
@pytest.mark.parametrize("ranks", [4, 8, 16])
def test_what_is_sent_is_the_algorithms_volume_and_arrives(algorithm, collective, ranks):
    fabric = topology(ranks // 4, fabric="leaf_spine", nodes_per_leaf=2)
    plan = planner(fabric, algorithm).plan(collective, 8 * MB, range(ranks))
    program = program_of(fabric, plan)
    _, network = run(fabric, plan)
    # Every link carries what the program says, nothing twice, nothing lost.
    assert network.link_bytes() == program.link_bytes
    out = sum(
        num_bytes
        for link, num_bytes in network.link_bytes().items()
        if fabric.links.names[link].split(".")[0] in ("nvlink", "nic")
        and fabric.links.names[link].endswith("out")
    )
    schedule = collective_named(collective).steps(plan.algorithm, ranks, 8 * MB)
    assert out == sum(transfer.num_bytes for transfer in schedule)


def test_loads_are_those_that_the_fluid_network_charges():
    fabric = topology(4)
    plan = planner(fabric).plan("all_reduce", 64 * MB, range(16))
    program = program_of(fabric, plan)
    for use in plan.links:
        assert program.link_bytes[use.link] == pytest.approx(use.weight * plan.volume_bytes, rel=1e-5)


@pytest.mark.parametrize(
    ("algorithm", "collective"), [("ring", "all_reduce"), ("tree", "all_reduce"), ("ring", "all_to_all")]
)
def test_fluid_and_packets_agree_on_large_messages_alone(algorithm, collective):
    fabric = topology(2, latency_s=3e-6)
    plan = planner(fabric, algorithm).plan(collective, 256 * MB, range(8))
    clock = Clock()
    fluid = Flow(clock, wire_plan(fabric, plan), ())
    FluidNetwork(clock, fabric.links.bytes_per_s).start(fluid)
    clock.drain()
    assert run(fabric, plan)[0] == [pytest.approx(clock.now / 1e6, rel=0.02)]


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "broadcast"])
@pytest.mark.parametrize("size", [MB // 10, MB, 20 * MB])
def test_one_ring_alone_takes_the_closed_form_at_any_size(collective, size):
    # One GPU per node: no rotations that could meet at a port, so latency and data add up as on paper.
    fabric = topology(8, per_node=1, latency_s=4e-6)
    plan = planner(fabric).plan(collective, size, range(8))
    assert run(fabric, plan)[0] == [pytest.approx(wire_plan(fabric, plan).alone_ps / 1e6, rel=1e-3)]


def test_smaller_segments_change_little():
    fabric = topology(2)
    plan = planner(fabric).plan("all_reduce", 32 * MB, range(8))
    coarse, fine = (
        run(fabric, plan, settings=PacketSettings(max_segments=budget))[0][0] for budget in (5_000, 50_000)
    )
    assert coarse == pytest.approx(fine, rel=0.02)


def test_the_same_run_twice_is_the_same():
    fabric = topology(2)
    plans = [planner(fabric).plan(name, 4 * MB, range(8)) for name in ("all_reduce", "all_to_all")]
    assert run(fabric, *plans)[0] == run(fabric, *plans)[0]


def test_nothing_to_do_ends_at_once():
    fabric = topology()
    assert run(fabric, planner(fabric).plan("all_reduce", 1000, [2]))[0] == [0.0]


def test_an_algorithm_that_is_not_known_is_refused():
    fabric = topology(per_node=8)
    plan = replace(planner(fabric).plan("all_reduce", MB, range(8)), algorithm="butterfly")
    with pytest.raises(InputError, match="no messages of 'butterfly'"):
        run(fabric, plan)
