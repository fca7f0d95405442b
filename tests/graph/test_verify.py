"""What makes ranks unable to run together is found, and named from both sides."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.errors import GraphError
from simcore.graph import GraphBuilder, external, verify
from tests.graph.examples import data_parallel, two_stages


def test_good_graphs_have_no_warnings():
    assert verify(two_stages()) == []
    assert verify(data_parallel()) == []


def collectives(*sequences, size=None, names=None):
    """One rank per sequence of (collective, bytes, reduce_op), all in one group."""
    build = GraphBuilder(len(sequences))
    build.group("tp", dims=((size or len(sequences), 1),))
    for rank, sequence in enumerate(sequences):
        template = build.template("fwd")
        for kind, num_bytes, reduce_op in sequence:
            template.collective(kind, "tp", num_bytes, reduce_op=reduce_op)
        build.program([rank], [(template, 5, 0)])
    return build.build()


SUM = ("all_reduce", 64, "sum")


@pytest.mark.parametrize(
    ("other", "found"),
    [
        (("all_gather", 64, "sum"), "'nccl::all_gather' of 64 bytes"),
        (("all_reduce", 128, "sum"), "'nccl::all_reduce' of 128 bytes sum"),
        (("all_reduce", 64, "max"), "'nccl::all_reduce' of 64 bytes max"),
    ],
)
def test_members_that_disagree_are_named_with_op_and_position(other, found):
    graph = collectives([SUM, SUM], [SUM, SUM], [SUM, other])
    with pytest.raises(GraphError) as error:
        verify(graph)
    text = str(error.value)
    assert "process group 'tp' (ranks 0, 1, 2)" in text
    assert "number 1: rank 0 issues 'nccl::all_reduce' of 64 bytes sum (op 1, 'fwd' of microbatch 5)" in text
    assert f"rank 2 {found}" in text


def test_a_missing_collective_is_named():
    with pytest.raises(GraphError, match=r"number 1: rank 0 issues .* rank 1 nothing more"):
        verify(collectives([SUM, SUM], [SUM]))
    with pytest.raises(GraphError, match="number 0: rank 0 issues nothing more, rank 1 'nccl::all_reduce'"):
        verify(collectives([], [SUM]))


def test_order_matters():
    gather = ("all_gather", 64, "")
    with pytest.raises(GraphError, match="number 0"):
        verify(collectives([SUM, gather], [gather, SUM]))


def test_groups_of_one_family_may_differ_from_each_other():
    # Ranks 0 and 1 are one group, 2 and 3 another; only members of one group must agree.
    assert verify(collectives([SUM], [SUM], [SUM, SUM], [SUM, SUM], size=2)) == []


def p2p(sends, recvs, delta=1):
    build = GraphBuilder(2)
    build.group("pp", dims=((2, 1),))
    left, right = build.template("fwd"), build.template("fwd")
    for num_bytes in sends:
        left.send("pp", delta, num_bytes)
    for num_bytes in recvs:
        right.recv("pp", -delta, num_bytes)
    build.program([0], [(left, 0, 0)])
    build.program([1], [(right, 0, 0)])
    return build.build()


@pytest.mark.parametrize(
    ("sends", "recvs", "reason"),
    [
        ([8, 8], [8], "number 1: rank 0 issues 'nccl::send' of 8 bytes .*, rank 1 nothing more"),
        ([8], [8, 16], "number 1: rank 0 issues nothing more, rank 1 'nccl::recv' of 16 bytes"),
        ([8, 4], [8, 16], "number 1: rank 0 issues 'nccl::send' of 4 bytes .*, rank 1 'nccl::recv' of 16"),
    ],
)
def test_sends_without_their_recv(sends, recvs, reason):
    with pytest.raises(GraphError, match="sends of rank 0 to rank 1 do not match its receives; " + reason):
        verify(p2p(sends, recvs))


def test_matching_sends_and_recvs():
    assert verify(p2p([8, 16], [8, 16])) == []


def test_a_send_to_oneself_is_refused():
    with pytest.raises(GraphError, match="peer_delta 0 names no other member of process group 'pp' of 2"):
        verify(p2p([8], [8], delta=2))


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 5), st.integers(1, 4), st.data())
def test_a_ring_of_sends_matches_for_every_delta(size, stride, data):
    # Every rank sends delta on and receives from delta back: always matched, whatever the stride.
    delta = data.draw(st.integers(1, size - 1))
    build = GraphBuilder(size * stride)
    build.group("ring", dims=((size, stride),))
    template = build.template("fwd")
    template.send("ring", delta, 32, stream="out")
    template.recv("ring", -delta, 32, stream="in")
    build.program(range(size * stride), [(template, 0, 0)] * 3)
    assert verify(build.build()) == []
    wrong = build.template("fwd")
    wrong.send("ring", delta, 32, stream="out")
    wrong.recv("ring", -delta, 33, stream="in")
    broken = GraphBuilder(size * stride)
    broken.group("ring", dims=((size, stride),))
    one, other = broken.template("fwd"), broken.template("fwd")
    for made, received in ((one, 32), (other, 33)):
        made.send("ring", delta, 32, stream="out")
        made.recv("ring", -delta, received, stream="in")
    victim = data.draw(st.integers(0, size * stride - 1))
    broken.program([rank for rank in range(size * stride) if rank != victim], [(one, 0, 0)])
    broken.program([victim], [(other, 0, 0)])
    with pytest.raises(GraphError, match=f"to rank {victim} do not match"):
        verify(broken.build())


def test_a_rank_outside_its_group():
    build = GraphBuilder(4)
    build.group("embd", explicit=[(0, 3)])
    template = build.template("fwd")
    template.collective("all_reduce", "embd", 8)
    build.program(range(4), [(template, 0, 0)])
    with pytest.raises(GraphError, match=r"rank 1 issues 'nccl::all_reduce' .* but is not a member"):
        verify(build.build())


@pytest.mark.parametrize(
    ("explicit", "reason"),
    [
        ([(0, 1), (2,)], "its groups differ in size"),
        ([(0, 1), (1, 2)], "rank 1 is in it twice"),
        ([(0, 7)], "names rank 7, the world has 3"),
    ],
)
def test_groups_that_are_none(explicit, reason):
    build = GraphBuilder(3)
    build.group("odd", explicit=explicit)
    template = build.template("fwd")
    template.collective("all_reduce", "odd", 8)
    build.program(range(3), [(template, 0, 0)])
    with pytest.raises(GraphError, match=reason):
        verify(build.build())


def test_ranks_without_or_with_two_programs():
    graph = two_stages()
    with pytest.raises(GraphError, match="rank 1"):
        verify(replace(graph, programs=graph.programs[:1]))
    doubled = replace(graph.programs[0], ranks=((0, 2, 1),))
    with pytest.raises(GraphError, match="already has a program"):
        verify(replace(graph, programs=(doubled, graph.programs[1])))


def test_an_op_that_depends_on_itself():
    graph = two_stages()
    edges = replace(graph.edges, src=np.array([1, 2, 2]))
    with pytest.raises(GraphError, match="the graph has a cycle"):
        verify(replace(graph, edges=edges))


def test_a_wait_for_something_before_the_start():
    build = GraphBuilder(1)
    template = build.template("fwd")
    template.compute("use", waits=(external("compute"),))
    build.program([0], [(template, 0, 0)])
    with pytest.raises(GraphError, match="'use' in instance 0"):
        verify(build.build())


def crossing(*, wait=False, chain=False, sync=False, late=False, outside=False):
    """An op on stream "side" that reads data of stream "compute", ordered in one way or not at all."""
    build = GraphBuilder(1)
    first = build.template("fwd")
    writer = first.compute("write")
    if outside:
        build_reader = build.template("bwd")
        waits = (external("compute"),) if wait else ()
        build_reader.compute("read", stream="side", data=(external("compute"),), waits=waits)
        build.program([0], [(first, 0, 0), (build_reader, 0, 0)])
        return build.build()
    if chain:
        middle = first.compute("middle", stream="third", waits=(writer,))
        first.compute("before", stream="side", waits=(middle,))
    if sync:
        first.sync("compute")
    first.compute("read", stream="side", data=(writer,), waits=(writer,) if wait else ())
    if late:
        first.compute("after", stream="side", waits=(writer,))
    build.program([0], [(first, 0, 0), (first, 1, 0)])
    return build.build()


@pytest.mark.parametrize(
    "how", [{"wait": True}, {"chain": True}, {"sync": True}, {"wait": True, "outside": True}]
)
def test_ordered_data_gives_no_warning(how):
    assert verify(crossing(**how)) == []


def test_unordered_data_gives_one_warning_per_pair_of_ops():
    # Two instances, so two places, one warning.
    assert verify(crossing()) == [
        "2 op(s) 'read' on stream 'side' read what 'write' on stream 'compute' writes, "
        "but no wait orders them (first in program 'program0')"
    ]
    assert len(verify(crossing(outside=True))) == 1


def test_a_wait_that_comes_too_late_does_not_help():
    # In the second instance the wait of the first orders only the first instance's write.
    assert len(verify(crossing(late=True))) == 1


def test_a_hundred_thousand_ranks_verify():
    build = GraphBuilder(131_072)
    build.group("tp", dims=((8, 1),))
    build.group("pp", dims=((16, 8),))
    build.group("dp", dims=((1024, 128),))
    for stage in range(16):
        template = build.template("fwd")
        if stage > 0:
            template.recv("pp", -1, 64)
        template.collective("all_reduce", "tp", 64)
        template.collective("all_reduce", "dp", 64)
        if stage < 15:
            template.send("pp", 1, 64)
        ranks = (rank for start in range(stage * 8, 131_072, 128) for rank in range(start, start + 8))
        build.program(ranks, [(template, 0, 0)], stage=stage)
    graph = build.build()
    assert verify(graph) == []


@pytest.mark.parametrize("with_host_op", [False, True])
def test_a_rank_that_runs_nothing_is_refused(with_host_op):
    build = GraphBuilder(3)
    busy, idle = build.template("fwd"), build.template("fwd")
    busy.compute("gemm")
    if with_host_op:
        idle.host("wait for data", 10)
    build.program([0], [(busy, 0, 0)])
    build.program([1, 2], [(idle, 0, 0)])
    with pytest.raises(GraphError, match=r"'program1' \(rank 1 and 1 more\) runs nothing on its GPU"):
        verify(build.build())
