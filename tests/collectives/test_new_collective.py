"""A collective that somebody adds in one file (docs/extend/collective.py) is planned and simulated."""

from dataclasses import replace

import pytest

from simcore.collectives import COLLECTIVES, NcclPlanner, collective_named
from simcore.collectives.kinds import register
from simcore.errors import InputError
from simcore.graph import GraphBuilder, verify
from simcore.hardware import Topology, load_cluster
from simcore.network.packet import PacketSettings
from simcore.run import Setup, run
from simcore.units import GIB, MIB, PS_PER_S
from tests.extend import example

CLUSTER = load_cluster("h100-8")
TOPOLOGY = Topology(CLUSTER)
UNEVEN = "all_to_all_v:5,1,1,1"


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    monkeypatch.setattr(COLLECTIVES, "_found", {name: COLLECTIVES[name] for name in COLLECTIVES})
    example("collective")


def planned(collective, num_bytes=GIB):
    return NcclPlanner(TOPOLOGY).plan(collective, num_bytes, range(4))


def simulated(collective, num_bytes=GIB, **setup):
    build = GraphBuilder(4, name="exchange")
    build.group("ep", ((4, 1),))
    template = build.template("tokens")
    template.collective(collective, "ep", num_bytes)
    build.program(range(4), [(template, -1, 0)])
    graph = build.build()
    verify(graph)
    return run(graph, CLUSTER, Setup(**setup)).result


def test_links_carry_what_the_name_says():
    plan = planned(UNEVEN)
    carried = {TOPOLOGY.links.names[use.link]: use.weight * plan.volume_bytes / GIB for use in plan.links}
    # The first member keeps 5/8 of its GiB and sends 1/8 to each other; each of those keeps 1/8 of its own.
    assert carried["nvlink.0.out"] == pytest.approx(3 / 8)
    assert carried["nvlink.1.out"] == pytest.approx(7 / 8)
    # It receives 5/8 from three others, and they 1/8 from three.
    assert carried["nvlink.0.in"] == pytest.approx(15 / 8)
    assert carried["nvlink.1.in"] == pytest.approx(3 / 8)


def test_even_shares_are_an_all_to_all():
    one, other = planned("all_to_all_v:1,1,1,1"), planned("all_to_all")
    assert (one.alone_ps, one.links, one.channels) == (other.alone_ps, other.links, other.channels)


def test_the_port_that_receives_most_sets_the_time():
    uneven, even = planned(UNEVEN), planned("all_to_all")
    # 15/8 GiB into one port instead of 3/4 into each.
    data_ps = even.alone_ps - even.latency_ps
    assert uneven.alone_ps - uneven.latency_ps == pytest.approx(data_ps * (15 / 8) / (3 / 4), abs=2)
    # NVLink's port carries 370.8 GB/s; unsynchronised peers and the own copy leave 84.5% of it.
    assert data_ps == pytest.approx(0.75 * GIB / (0.845 * 370.8e9) * PS_PER_S, rel=1e-3)


@pytest.mark.parametrize("network", ["fluid", "alphabeta"])
def test_a_graph_with_it_runs(network):
    uneven, even = simulated(UNEVEN, network=network), simulated("all_to_all", network=network)
    if network == "fluid":
        longer = planned(UNEVEN).alone_ps - planned("all_to_all").alone_ps
        assert uneven.step_ps - even.step_ps == pytest.approx(longer, abs=2)
    assert uneven.step_ps > even.step_ps
    # The first member is no stand-in for the others; that three of them are alike makes no difference.
    assert len(uneven.representatives) > len(even.representatives) == 1
    assert simulated(UNEVEN, network=network, fold=False).step_ps == uneven.step_ps


def test_packets_take_as_long_as_flows():
    fluid = simulated(UNEVEN, 16 * MIB).step_ps
    assert simulated(UNEVEN, 16 * MIB, network="packet", packets=PacketSettings()).step_ps == pytest.approx(
        fluid, rel=0.05
    )


def register_changed(change):
    """``changed:SHARES``: all_to_all_v of these shares with transfers that ``change`` has made others of."""

    def variant(name):
        kind = collective_named("all_to_all_v:" + name.partition(":")[2])

        def pairwise(*numbers):
            return (changed for one in kind.schedules["pairwise"](*numbers) for changed in change(one))

        return replace(kind, name=name, schedules={"pairwise": pairwise})

    register(replace(COLLECTIVES["all_to_all_v"], name="changed", variant=variant))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda one: [replace(one, num_bytes=one.num_bytes // 2)],
            r"sends 65,536 of 1,048,576 bytes from rank 0 to 1;"
            r" pieces\(0, 1, 4\) is 0.5 times num_bytes/num_ranks, 131,072",
        ),
        (lambda one: [one, one], "sends 262,144 of 1,048,576"),
        (lambda one: [one] if one.step else [], "sends 0 of 1,048,576 bytes from rank 0 to 1"),
        (lambda one: [replace(one, dst=one.src)], "one of 4 ranks to another"),
        (lambda one: [replace(one, dst=4)], "one of 4 ranks to another"),
        (lambda one: [replace(one, channel=1)], "on channel 0"),
    ],
)
def test_packets_that_are_not_what_pieces_says_are_refused(change, words):
    register_changed(change)
    with pytest.raises(InputError, match=words):
        simulated("changed:5,1,1,1", MIB, network="packet", packets=PacketSettings())


def test_a_byte_more_or_less_for_each_transfer_is_how_a_program_rounds():
    register_changed(lambda one: [replace(one, num_bytes=one.num_bytes // 2)] * 2)
    assert simulated("changed:5,1,1,1", MIB + 3, network="packet", packets=PacketSettings()).step_ps > 0


def test_a_kind_is_registered_once_and_its_fields_are_of_their_types():
    with pytest.raises(InputError, match="collective 'all_to_all_v' is registered twice"):
        example("collective")
    known = COLLECTIVES["all_gather"]
    for field, value, words in (
        ("gives_part", "yes", "gives_part is 'yes', not True or False"),
        ("passes", 1.5, "passes is 1.5, not a count"),
        ("pieces", 3, "pieces is 3, not a function"),
        ("schedules", {"ring": None}, "not a generator"),
        ("schedules", {}, "schedules has no algorithm"),
        ("bare", False, "needs variant"),
        ("grouped", True, "the schedule 'pairwise'; schedules has 'ring'"),
    ):
        with pytest.raises(InputError, match=f"collective 'all_gather': .*{words}"):
            replace(known, **{field: value})


def test_a_wrong_name_is_refused():
    with pytest.raises(InputError, match="'all_to_all_v': say all_to_all_v:NUMBER"):
        planned("all_to_all_v")  # all_to_all alone is a kind, this is none
    with pytest.raises(InputError, match="a number per member"):
        planned("all_to_all_v:5,x")
    with pytest.raises(InputError, match="needs 4 numbers"):
        planned("all_to_all_v:5,1")
    with pytest.raises(InputError, match="did you mean 'all_to_all'"):
        planned("all_to_al")
