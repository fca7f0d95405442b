"""Cables and hashes, switches that add and copy, RoCE fabrics, and what plans have beyond wires."""

from dataclasses import replace

import pytest

from simcore.collectives import NcclPlanner
from simcore.errors import InputError
from simcore.network.packet import PacketSettings, RoceSettings, program_of
from tests.network.packet_fabric import MB, planner, run, topology

ROCE = PacketSettings(transport="roce")


def leaf_spine(nodes=4, per_node=1, **kw):
    """Two nodes below each leaf, and as many uplinks as NICs."""
    return topology(nodes, per_node, fabric="leaf_spine", nodes_per_leaf=2, **kw)


def two_sends(fabric, settings):
    """Ends of two sends from different NICs of one leaf to different NICs of the other, 4 MB each."""
    plans = [planner(fabric, max_channels=1).plan_p2p(4 * MB, src, src + 2) for src in (0, 1)]
    return run(fabric, *plans, settings=replace(settings, segment_bytes=16_384))


def test_spread_paths_never_collide():
    # 8 MB over uplinks of 2 x 10 GB/s: 400 us.
    ends, _ = two_sends(leaf_spine(), PacketSettings(routing="spread"))
    assert ends == [pytest.approx(400.0, rel=1e-2)] * 2


def cables_used(network, fabric, name):
    """Ports by cable of the link called ``name``."""
    link = fabric.links.names.index(name)
    return {cable: port for (number, cable), port in network.ports.items() if number == link}


def test_hashed_paths_collide_half_of_the_time():
    # On one cable the two share 10 GB/s and take 800 us, on two cables 400 us.
    fabric = leaf_spine()
    found = []
    for seed in range(40):
        ends, network = two_sends(fabric, PacketSettings(routing="ecmp", seed=seed))
        found.append(len(cables_used(network, fabric, "leaf.0.up")))
        expected = 800.0 if found[-1] == 1 else 400.0
        assert max(ends) == pytest.approx(expected, rel=1e-2)
    # 40 fair coins: 20 with a standard deviation of 3.2.
    assert 10 <= found.count(1) <= 30


def test_the_way_up_decides_the_way_down():
    fabric = leaf_spine(nodes=16, per_node=4)
    used = set()
    for seed in range(5):
        plan = planner(fabric, max_channels=1).plan_p2p(MB, 0, 60)
        _, network = run(fabric, plan, settings=PacketSettings(routing="ecmp", seed=seed))
        (up,) = cables_used(network, fabric, "leaf.0.up")
        (down,) = cables_used(network, fabric, "leaf.7.down")
        assert up == down
        used.add(up)
    assert len(used) > 1


def test_channels_hash_by_themselves():
    fabric = leaf_spine(nodes=4, per_node=8)  # 16 uplinks
    plan = NcclPlanner(fabric, protocol="Simple", min_channels=8, max_channels=8).plan_p2p(8 * MB, 0, 16)
    _, network = run(fabric, plan, settings=PacketSettings(routing="ecmp"))
    used = cables_used(network, fabric, "leaf.0.up")
    assert 4 <= len(used) <= 8  # eight balls into sixteen bins: 6.5 on average
    assert sum(port.sent_bytes for port in used.values()) == 8 * MB


@pytest.mark.parametrize("settings", [ROCE, PacketSettings(routing="ecmp"), replace(ROCE, routing="spread")])
@pytest.mark.parametrize("collective", ["all_reduce", "all_to_all"])
def test_every_fabric_delivers_the_algorithms_volume(settings, collective):
    fabric = leaf_spine(4, 4, spine_oversubscription=2.0)
    plan = planner(fabric).plan(collective, 2 * MB, range(16))
    (end,), network = run(fabric, plan, settings=settings)
    assert network.link_bytes() == program_of(fabric, plan).link_bytes
    assert run(fabric, plan, settings=settings)[0] == [end]  # dice included
    # No faster than without collisions, marks and pauses.
    assert end >= run(fabric, plan)[0][0] * 0.999


def test_the_clusters_transport_holds_unless_another_is_asked_for():
    fabric = leaf_spine(transport="roce")
    for transport, pauses in ((None, True), ("roce", True), ("infiniband", False)):
        _, network = two_sends(fabric, PacketSettings(transport=transport))
        assert network.settings.transport == (transport or "roce")
        assert network.settings.hashes_paths == pauses


def test_a_cloud_whose_ports_nobody_described_is_refused_unless_a_transport_is_said():
    fabric = leaf_spine(transport="efa")
    with pytest.raises(InputError, match="packets know the ports of infiniband and roce, not of 'efa'"):
        two_sends(fabric, PacketSettings())
    assert two_sends(fabric, ROCE)[1].settings.transport == "roce"


def incast(roce):
    """Seven senders of 10 MB into one NIC, from one leaf."""
    fabric = topology(8, 1, fabric="leaf_spine", nodes_per_leaf=8, latency_s=2e-6)
    plans = [planner(fabric, max_channels=1).plan_p2p(10 * MB, src, 7) for src in range(7)]
    ends, network = run(fabric, *plans, settings=replace(ROCE, roce=roce))
    return max(ends), [network.ports[fabric.nic_out(src), 0] for src in range(7)]


def test_marks_keep_an_incast_below_the_pause_threshold():
    end, ports = incast(RoceSettings())
    # The first notifications cut all rates far below a seventh (alpha is 1); published increases are slow.
    assert 7000.0 <= end <= 2 * 7000.0
    assert not any(port.num_pauses for port in ports)
    # Steeper increases fill the port sooner.
    assert incast(RoceSettings(additive_share=0.01, hyper_share=0.1))[0] < 0.9 * end


def test_pause_frames_alone_hold_an_incast_at_full_speed():
    end, ports = incast(RoceSettings(dcqcn=False, pfc_xoff_bytes=200_000, pfc_xon_bytes=190_000))
    assert end == pytest.approx(7000.0, rel=0.01)
    assert all(port.num_pauses > 0 for port in ports)
    # Headroom: 2 us there and back at 10 GB/s are 20 KB, and a segment at either end.
    assert max(port.most_bytes for port in ports) <= 200_000 + 20_000 + 2 * 4096


def nvls_plan(fabric, size, ranks, algorithm="nvls"):
    return NcclPlanner(fabric, algorithm=algorithm).plan("all_reduce", size, ranks)


def test_a_switch_reads_all_ports_and_sends_one_copy_down_each():
    fabric = topology(per_node=8, latency_s=1e-6)
    plan = nvls_plan(fabric, 16 * MB, range(8))
    (end,), network = run(fabric, plan)
    charged = {use.link: use.weight * plan.volume_bytes for use in plan.links}
    for gpu in range(8):
        for link in (fabric.nvlink_out(gpu), fabric.nvlink_in(gpu)):
            # 16 MB and a slice of 2 MB each way, over the share of a port that NVLS reaches.
            assert network.link_bytes()[link] == pytest.approx(charged[link], rel=1e-3)
            assert network.link_bytes()[link] > 18 * MB
    port_us = charged[fabric.nvlink_out(0)] / 100e9 * 1e6
    assert port_us <= end <= port_us * 1.02 + 10.0


def test_a_tree_of_switches_carries_each_slice_on_its_rail():
    fabric = topology(4, 8, latency_s=1e-6)
    plan = nvls_plan(fabric, 16 * MB, range(32), "nvls_tree")
    (end,), network = run(fabric, plan)
    sent = network.link_bytes()
    # A tree of 4 nodes has 3 edges, each with a slice of 2 MB up and down: 12 MB from the NICs of a rail.
    for local in range(8):
        nics = [fabric.nic_out(8 * node + local) for node in range(4)]
        assert sum(sent.get(link, 0) for link in nics) == pytest.approx(12 * MB, rel=1e-3)
    charged = max(
        use.weight * plan.volume_bytes / float(fabric.links.bytes_per_s[use.link]) for use in plan.links
    )
    assert end >= charged * 1e6 * 0.99


@pytest.mark.parametrize(
    ("collective", "algorithm", "ranks"),
    [
        ("all_gather", "ring", 8),
        ("all_reduce", "ring", 16),
        ("all_reduce", "nvls", 8),
        ("all_to_all", "ring", 16),
        ("all_to_all", "hierarchical", 16),
        ("reduce_scatter", "pat", 8),
    ],
)
def test_with_software_a_collective_alone_takes_its_plans_time(collective, algorithm, ranks):
    nodes, per_node = (ranks, 1) if algorithm == "pat" else (ranks // 8, 8)  # PAT knows no nodes
    fabric = topology(nodes, per_node, latency_s=1e-6)
    plan = NcclPlanner(fabric, algorithm=algorithm).plan(collective, 32 * MB, range(ranks))
    settings = PacketSettings(software=True, max_segments=30_000)
    assert run(fabric, plan, settings=settings)[0] == [pytest.approx(plan.alone_ps / 1e6, rel=0.02)]


def test_few_channels_hold_a_ring_back():
    fabric = topology(per_node=8)
    plan = NcclPlanner(fabric, algorithm="ring", protocol="Simple", max_channels=1).plan(
        "all_gather", 16 * MB, range(8)
    )
    wires_us = 14 * MB / 100e9 * 1e6
    assert plan.alone_ps / 1e6 > 2 * wires_us
    ends, _ = run(fabric, plan, settings=PacketSettings(software=True))
    assert ends == [pytest.approx(plan.alone_ps / 1e6, rel=0.03)]


@pytest.mark.parametrize("collective", ["all_reduce", "all_to_all", "barrier"])
def test_a_few_bytes_among_many_arrive(collective):
    fabric = topology(2, 8, latency_s=1e-6)
    plan = NcclPlanner(fabric, max_channels=1).plan(collective, 4, range(16))
    (end,), _ = run(fabric, plan, settings=PacketSettings(software=True))
    assert end == pytest.approx(plan.alone_ps / 1e6, rel=0.5)


class Memory:
    """An endpoint that writes down what is drawn from it."""

    def __init__(self):
        self.drawn = []

    def draw_changed(self, flow, bytes_per_ps, desired_bytes_per_ps):
        self.drawn.append((bytes_per_ps, desired_bytes_per_ps))

    def draw_ended(self, flow):
        self.drawn.append(None)

    def refresh(self):
        self.drawn.append("refresh")


def test_a_member_short_of_memory_slows_its_flow():
    fabric = topology(2)
    plan = planner(fabric).plan_p2p(10 * MB, 0, 4)
    member = Memory()
    rate = 10e9 / 1e12  # of the NIC, bytes/ps
    ends, _ = run(
        fabric, plan, members=[member], during=lambda network, flow: network.limit(flow, member, rate / 4)
    )
    # A quarter of 10 GB/s; a connection alone may have sent one segment before.
    assert ends == [pytest.approx(4000.0, rel=2e-3)]
    hbm = plan.hbm_bytes_per_byte
    full, quarter = pytest.approx(rate * hbm), pytest.approx(rate / 4 * hbm)
    assert member.drawn == [(full, full), (quarter, full), None, "refresh"]
