"""A hang is an error that names ranks, ops and positions; so is a disagreement."""

from dataclasses import replace

import pytest

from simcore.errors import DeadlockError, GraphError, InputError
from simcore.graph import GraphBuilder
from simcore.hardware import Topology
from tests.engine.lab import US, C, cluster, run


def test_blocking_sends_in_a_circle():
    # Each rank sends before it posts its recv, on one stream: nobody can start.
    build = GraphBuilder(2, name="circle")
    build.group("pp", ((2, 1),))
    template = build.template("fwd")
    template.compute("k", recorded_ps=US)
    template.send("pp", 1, 1)
    template.recv("pp", 1, 1)
    build.program([0, 1], [(template, 0, 0)])
    with pytest.raises(DeadlockError) as caught:
        run(build.build(), transfers={1: C(us=1)})
    message = str(caught.value)
    assert "2 of 2 ranks cannot go on" in message
    assert "rank 0: stream 'pp' at op 1 'nccl::send' waits in group 'pp' (call 0) for rank(s) 1" in message
    assert "rank 1: stream 'pp' at op 1 'nccl::send' waits in group 'pp' (call 0) for rank(s) 0" in message


def test_a_member_that_never_comes():
    build = GraphBuilder(3, name="absent")
    build.group("tp", ((3, 1),))
    joins, absent = build.template("fwd"), build.template("fwd")
    joins.collective("all_reduce", "tp", 1, stream="compute")
    joins.sync()
    absent.compute("k", recorded_ps=US)
    build.program([0, 1], [(joins, 0, 0)])
    build.program([2], [(absent, 0, 0)])
    with pytest.raises(
        DeadlockError, match=r"rank 0: the host waits in host op 'cudaDeviceSynchronize' \(op 1\)"
    ):
        run(build.build(), transfers={1: C(us=1)})
    with pytest.raises(
        DeadlockError, match=r"op 0 'nccl::all_reduce' waits in group 'tp' \(call 0\) for rank\(s\) 2"
    ):
        run(build.build(), transfers={1: C(us=1)})


def test_members_that_disagree():
    build = GraphBuilder(2, name="disagree")
    build.group("tp", ((2, 1),))
    for rank, size in ((0, 1), (1, 2)):
        template = build.template("fwd")
        template.collective("all_reduce", "tp", size)
        build.program([rank], [(template, 0, 0)])
    with pytest.raises(
        GraphError, match="rank 0 issued all_reduce of 1 bytes but rank 1 issued all_reduce of 2 bytes"
    ):
        run(build.build(), transfers={1: C(us=1), 2: C(us=1)})


def test_too_few_sms_are_not_blamed_on_the_program():
    # Each rank sends on one stream and receives on another: both kernels wait for the other rank at once.
    build = GraphBuilder(2, name="exchange")
    build.group("pp", ((2, 1),))
    template = build.template("fwd")
    template.compute("k", recorded_ps=US)
    template.send("pp", 1, 1, stream="out")
    template.recv("pp", 1, 1, stream="in")
    build.program([0, 1], [(template, 0, 0)])
    graph = build.build()
    spec = cluster().cluster
    two, one = (Topology(replace(spec, gpu=replace(spec.gpu, num_sms=n))) for n in (2, 1))
    run(graph, transfers={1: C(us=1, channels=1)}, topology=two)
    with pytest.raises(InputError, match=r"gpu.num_sms=1 is too few: .* hold 1, .* need 1 more; at least 2"):
        run(graph, transfers={1: C(us=1, channels=1)}, topology=one)


def test_unknown_network():
    build = GraphBuilder(1, name="one")
    template = build.template("fwd")
    template.compute("k", recorded_ps=US)
    build.program([0], [(template, 0, 0)])
    with pytest.raises(InputError, match=r"unknown network model 'fluit'; did you mean 'fluid'\?"):
        run(build.build(), network="fluit")
