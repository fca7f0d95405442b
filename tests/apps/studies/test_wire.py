"""Plans on bare wires: the folded schedule against the packets that it stands for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simcore.apps.studies.cases import PlanSequence, TrafficCase
from simcore.apps.studies.compare import run_packet
from simcore.apps.studies.wire import bandwidth_s, first_message_s, wire_plan
from simcore.collectives.planner import NcclPlanner
from simcore.hardware.load import load_cluster
from simcore.hardware.topology import Topology
from simcore.units import KIB, MIB, PS_PER_S


def topology(nodes, **changes):
    return Topology(replace(load_cluster("h800-96"), num_nodes=nodes, **changes))


def packets_ps(fabric, plan):
    """Time of one plan alone on the packet network."""
    (alone,), _ = run_packet(TrafficCase("", "", fabric, (PlanSequence("", (plan,)),)))
    return alone


LEAVES = {"fabric": "leaf_spine", "nodes_per_leaf": 2, "spine_oversubscription": 2.0}


@pytest.mark.parametrize(("nodes", "changes"), [(2, {}), (4, LEAVES)], ids=["rail", "leaf_spine"])
@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [("all_reduce", "ring"), ("all_reduce", "tree"), ("all_gather", "ring"), ("broadcast", "ring")],
)
@pytest.mark.parametrize("size", [64 * KIB, 4 * MIB])
def test_the_folded_schedule_takes_as_long_as_its_packets(nodes, changes, collective, algorithm, size):
    fabric = topology(nodes, **changes)
    ranks = range(8 * nodes)
    plan = NcclPlanner(fabric, algorithm=algorithm, protocol="Simple").plan(collective, size, ranks)
    assert wire_plan(fabric, plan).alone_ps == pytest.approx(packets_ps(fabric, plan), rel=0.07)


@pytest.mark.parametrize("algorithm", ["ring", "tree"])
def test_no_schedule_beats_its_bandwidth_or_its_first_message(algorithm):
    fabric = topology(4)
    for size in (4 * KIB, MIB, 1024 * MIB):
        plan = NcclPlanner(fabric, algorithm=algorithm, protocol="Simple").plan("all_reduce", size, range(32))
        wires = wire_plan(fabric, plan)
        assert wires.alone_ps >= bandwidth_s(fabric, plan) * PS_PER_S * (1 - 1e-9)
        assert wires.lead_ps == pytest.approx(first_message_s(fabric, plan) * PS_PER_S, abs=1)


def test_waits_between_steps_are_spread_over_the_data():
    # What is not the first message's latency limits the rate: volume / rate + latency is the time alone.
    fabric = topology(4)
    plan = NcclPlanner(fabric, algorithm="ring", protocol="Simple").plan("all_reduce", MIB, range(32))
    wires = wire_plan(fabric, plan)
    moving_s = wires.volume_bytes / wires.pace_bytes_per_s
    assert wires.lead_ps + moving_s * PS_PER_S == pytest.approx(wires.alone_ps, abs=2)
    assert moving_s > 10 * bandwidth_s(fabric, plan)  # 62 steps of about 3 us against 0.2 us of data each
