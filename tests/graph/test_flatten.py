"""Programs played out: which flat op waits for which, and what every typed edge means."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from simcore.errors import GraphError
from simcore.graph import EdgeKind, GraphBuilder, external, program_edges, resolve_edges, resolve_waits
from tests.graph.examples import data_parallel, graphs, two_stages


def pairs(src, dst):
    return list(zip(src.tolist(), dst.tolist(), strict=True))


def test_waits_repeat_with_the_instances():
    # Template of 2 ops played twice: flat ops 0, 1 and 2, 3; op 1 waits for op 0 of its own instance.
    graph = two_stages()
    assert pairs(*resolve_waits(graph, graph.programs[0])) == [(0, 1), (2, 3)]


def test_external_waits_find_the_latest_op_of_the_stream():
    # Flat: 0 wgrad, 1 all_reduce (dp), 2 dgrad, 3 adam.  Adam waits for the latest op on dp.
    graph = data_parallel()
    assert pairs(*resolve_waits(graph, graph.programs[0])) == [(0, 1), (1, 3)]


def test_external_waits_count_back():
    build = GraphBuilder(1)
    ops, user = build.template("fwd"), build.template("bwd")
    for _ in range(3):
        ops.compute("a", stream="side")
        ops.compute("b")
    user.compute("use", waits=(external("side", 2), external("compute", 0)))
    build.program([0], [(ops, 0, 0), (user, 0, 0)])
    graph = build.build()
    # side holds flat 0, 2, 4 and compute 1, 3, 5; two before the latest on side is 0.
    assert sorted(pairs(*resolve_waits(graph, graph.programs[0]))) == [(0, 6), (5, 6)]


@pytest.mark.parametrize(("stream", "back"), [("compute", 1), ("nowhere", 0)])
def test_external_waits_before_the_start_are_refused(stream, back):
    build = GraphBuilder(1)
    first, second = build.template("fwd"), build.template("bwd")
    first.compute("a")
    second.compute("use", waits=(external(stream, back),))
    build.program([0], [(first, 0, 0), (second, 3, 0)])
    graph = build.build()
    where = rf"'use' in instance 1 .*'bwd', microbatch 3.*{back} before.*{stream!r}"
    with pytest.raises(GraphError, match=where):
        resolve_waits(graph, graph.programs[0])


def test_all_edge_kinds_of_a_small_program():
    graph = data_parallel()
    edges = program_edges(graph, graph.programs[0])
    assert pairs(edges.of_kind(EdgeKind.STREAM).src, edges.of_kind(EdgeKind.STREAM).dst) == [(0, 2), (2, 3)]
    launch = edges.of_kind(EdgeKind.LAUNCH)
    assert pairs(launch.src, launch.dst) == [(0, 1), (1, 2), (2, 3)]
    assert np.all(np.diff(edges.dst) >= 0)


def test_a_device_sync_follows_every_stream():
    build = GraphBuilder(1)
    template = build.template("fwd")
    template.compute("a", stream="one")
    template.compute("b", stream="two")
    template.compute("c", stream="two")
    template.sync()
    build.program([0], [(template, 0, 0)])
    edges = program_edges(build.build(), build.build().programs[0]).of_kind(EdgeKind.STREAM)
    # b before c on stream two; the sync (3) after the latest of each stream, 0 and 2.
    assert pairs(edges.src, edges.dst) == [(1, 2), (0, 3), (2, 3)]


@settings(max_examples=40, deadline=None)
@given(graphs())
def test_edges_point_forward_and_match_a_walk_op_by_op(graph):
    for program in graph.programs:
        flat = graph.flat_ops(program)
        expected = set()
        for instance, template in enumerate(program.template.tolist()):
            rows = graph.template_rows(template)
            for edge in range(len(graph.edges)):
                if graph.edges.dst[edge] in rows and graph.edges.kind[edge] == EdgeKind.WAIT:
                    base = int(flat.first[instance]) - rows.start
                    expected.add((int(graph.edges.src[edge]) + base, int(graph.edges.dst[edge]) + base))
        src, dst = resolve_waits(graph, program)
        assert set(pairs(src, dst)) == expected
        assert np.all(src < dst)
        assert np.all(np.diff(dst) >= 0)


def test_eighty_thousand_ops_resolve():
    build = GraphBuilder(1)
    template = build.template("fwd")
    for index in range(400):
        op = template.compute("a")
        if index % 4 == 0:
            template.compute("b", stream="side", waits=(op,))
    # 500 ops, played 160 times, and an external wait per instance after the first.
    later = build.template("bwd")
    later.compute("c", waits=(external("side", 3), external("compute", 0)))
    build.program([0], [(template, 0, 0), (later, 0, 0)] * 160)
    graph = build.build()
    src, _ = resolve_waits(graph, graph.programs[0])
    assert len(src) == 160 * (100 + 2)


def test_data_edges_resolve_too():
    graph = two_stages()
    assert pairs(*resolve_edges(graph, graph.programs[1], EdgeKind.DATA)) == [(0, 1), (3, 4)]
