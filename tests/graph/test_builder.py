"""Graphs written by hand: columns, edges, defaults, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcore.errors import GraphError, InputError
from simcore.graph import EdgeKind, GraphBuilder, OpKind, external
from simcore.graph.layout import rank_ranges
from tests.graph.examples import two_stages


def test_columns_hold_what_was_written():
    graph = two_stages()
    assert graph.ops.name.tolist() == ["gemm", "nccl::send", "nccl::recv", "gemm", "cudaDeviceSynchronize"]
    assert graph.ops.kind.tolist() == [OpKind.COMPUTE, OpKind.SEND, OpKind.RECV, OpKind.COMPUTE, OpKind.SYNC]
    assert graph.ops.stream.tolist() == ["compute", "pp", "pp", "compute", ""]
    # In a group of 2, one on and one back are the same member.
    assert graph.ops.peer_delta.tolist() == [0, 1, 1, 0, 0]
    assert graph.template_start.tolist() == [0, 2, 5]
    assert graph.programs[1].layer_offset == (4,)


def test_edges_are_sorted_and_typed():
    graph = two_stages()
    edges = graph.edges
    found = list(zip(edges.dst.tolist(), edges.src.tolist(), edges.kind.tolist(), strict=True))
    assert found == [(1, 0, EdgeKind.WAIT), (3, 2, EdgeKind.DATA), (3, 2, EdgeKind.WAIT)]


def test_groups_tile_the_world():
    build = GraphBuilder(24)
    tp = build.group("tp", dims=((2, 1),))
    pp = build.group("pp", dims=((3, 8),))
    assert tp.ranks_of(5) == (4, 5)
    assert pp.ranks_of(9) == (1, 9, 17)
    assert pp.index_of(9) == 1


@pytest.mark.parametrize(
    ("dims", "reason"),
    [
        (((5, 1),), "5 ranks do not divide the world of 24"),
        (((2, 1), (2, 3)), "stride 3 is no multiple of 2"),
    ],
)
def test_groups_that_cannot_tile_are_refused(dims, reason):
    with pytest.raises(InputError, match=reason):
        GraphBuilder(24).group("odd", dims=dims)


def test_unknown_names_are_refused_with_the_nearest():
    build = GraphBuilder(2)
    build.group("pipeline", dims=((2, 1),))
    template = build.template("fwd")
    with pytest.raises(InputError, match="unknown op column 'flop'; did you mean 'flops'"):
        template.compute("gemm", flop=3)
    with pytest.raises(InputError, match="unknown process group 'pipelin'; did you mean 'pipeline'"):
        template.send("pipelin", 1, 8)
    with pytest.raises(InputError, match="unknown workload field 'precison'; did you mean 'precision'"):
        GraphBuilder(2, precison="bf16")


def test_handles_of_another_template_are_refused():
    build = GraphBuilder(1)
    one, other = build.template("fwd"), build.template("bwd")
    foreign = one.compute("gemm")
    with pytest.raises(InputError, match=r"use external\(stream, back\)"):
        other.compute("gemm", waits=(foreign,))


def test_external_counts_from_zero():
    with pytest.raises(InputError, match="back counts from 0"):
        external("compute", -1)


def test_templates_of_another_builder_are_refused():
    one, other = GraphBuilder(1), GraphBuilder(1)
    template = one.template("fwd")
    with pytest.raises(InputError, match="belongs to another graph"):
        other.program([0], [(template, 0, 0)])


def test_every_rank_has_one_program():
    build = GraphBuilder(3)
    template = build.template("fwd")
    template.compute("gemm")
    build.program([0, 2], [(template, 0, 0)])
    with pytest.raises(GraphError, match="the first is rank 1"):
        _ = build.build().program_of_rank
    build.program([1, 2], [(template, 0, 0)])
    with pytest.raises(GraphError, match="already has a program"):
        _ = build.build().program_of_rank


@given(st.sets(st.integers(0, 300), max_size=40))
def test_rank_ranges_cover_exactly_the_ranks(ranks):
    covered = [rank for start, stop, step in rank_ranges(ranks) for rank in range(start, stop, step)]
    assert sorted(covered) == sorted(ranks)


def test_rank_ranges_are_few():
    assert rank_ranges(range(1, 96, 8)) == ((1, 90, 8),)


def test_ranks_that_interleave_are_few_ranges():
    # All but the first GPU of each of 1,024 nodes of 8: 1, 3, 5, 7, ...; 2, 6, 10, ...; 4, 12, 20, ...
    ranks = [8 * node + local for node in range(1024) for local in range(1, 8)]
    assert rank_ranges(ranks) == ((1, 8192, 2), (2, 8191, 4), (4, 8189, 8))
    assert rank_ranges([1, 2, 3, 5, 6, 7]) == ((1, 4, 1), (5, 8, 1))  # no fewer when interleaved
