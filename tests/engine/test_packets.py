"""A step on the packet network, beside the same step on the fluid one."""

import pytest

from simcore.collectives import NcclPlanner
from simcore.engine.shortcuts import simulate
from simcore.errors import InputError
from simcore.graph import GraphBuilder
from simcore.network.packet import PacketSettings
from tests.engine.lab import K, TableCost
from tests.symmetry.jobs import topology

MB = 1_000_000
COST = TableCost({"gemm": K(200, blocks=1100, hbm_bytes=60 * MB), "adam": K(100, hbm_bytes=900 * MB)})


def step(num_nodes=2, size=4 * MB):
    """Backward with all_reduce of each layer beside the next, over nodes; then sends and the optimizer."""
    world = 8 * num_nodes
    build = GraphBuilder(world, name="step")
    build.group("dp", ((num_nodes, 8),))
    template = build.template("bwd")
    for _ in range(3):
        done = template.compute("gemm")
        reduced = template.collective("all_reduce", "dp", size, waits=(done,))
    template.compute("adam", waits=(reduced,))
    build.program(range(world), [(template, 0, 0)])
    return build.build()


def run(network, packets=None, graph=None, **changes):
    where = topology(2, **changes)
    return simulate(graph or step(), where, COST, NcclPlanner(where), network=network, packets=packets)


def test_a_step_takes_as_long_as_with_flows():
    fluid, packet = run("fluid"), run("packet")
    assert packet.step_ps == pytest.approx(fluid.step_ps, rel=0.01)
    assert packet.engine_events > 100 * fluid.engine_events
    # Every rank is simulated: each sends packets of its own.
    assert len(packet.representatives) == 16


def test_a_gradient_all_reduce_slows_the_kernel_beside_it_as_flows_do():
    ends = [run(network).times[0].end_ps for network in ("fluid", "packet")]
    assert ends[1].tolist() == pytest.approx(ends[0].tolist(), rel=0.02)


def test_the_same_step_twice_is_the_same():
    packets = PacketSettings(transport="roce", seed=5)
    assert run("packet", packets).step_ps == run("packet", packets).step_ps


def test_a_job_too_large_is_refused_with_an_estimate():
    with pytest.raises(InputError, match=r"about [0-9.e+]+ events.*--network fluid.*network\.max_events="):
        run("packet", PacketSettings(max_events=1000))


def test_the_estimate_is_about_right():
    events = run("packet").engine_events
    with pytest.raises(InputError) as refused:
        run("packet", PacketSettings(max_events=1000))
    suggested = int(str(refused.value).rpartition("=")[2])
    assert events / 1.5 < suggested < events * 1.5
    assert run("packet", PacketSettings(max_events=suggested)).engine_events == events
