"""Rules of a user's own: what they match, what they change, when things then run; times derived by hand.

Kernels last a millisecond, far longer than the host takes to launch them, so that a step is its first launch
and the kernels of its longest chain: differences between steps are exact.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.collectives import NcclPlanner
from simcore.errors import GraphError, InputError
from simcore.graph import EdgeKind, Graph, GraphBuilder, graph_hash, load_graph, program_edges
from simcore.graph.passes.reissue import reissued
from simcore.graph.passes.variants import Change
from simcore.hardware import Topology, load_cluster
from simcore.rules import RuleGraph, apply_rules, collective, load_rules, point_to_point, rule
from simcore.run import run
from tests.graph.examples import graphs
from workloads import catalog

MS = 1_000_000_000
CLUSTER = load_cluster("h100-8")


def chain(microbatches: int = 3) -> Graph:
    """Two ranks that do the same: fwd a, b and bwd c on the compute stream, each 1 ms, each microbatch."""
    build = GraphBuilder(2, name="chain", num_microbatches=microbatches, dims={"dp": 2})
    build.group("dp", dims=((2, 1),))
    forward, backward = build.template("fwd"), build.template("bwd")
    for name in ("a", "b"):
        forward.compute(name, recorded_ps=MS, op_class="elementwise", bytes_read=100, bytes_written=100)
    backward.compute("c", recorded_ps=MS, layer=0, op_class="elementwise", bytes_read=100, bytes_written=100)
    skeleton = [(one, mb, 0) for mb in range(microbatches) for one in (forward, backward)]
    build.program(range(2), skeleton)
    return build.build()


def step_ps(graph: Graph) -> int:
    return run(graph, CLUSTER).result.step_ps


def after(graph: Graph, function, **gpu) -> Graph:
    """The graph after a rule of one function."""
    return apply_rules(graph, [rule("as the test says")(function)], **gpu).graph


def moved_ms(graph: Graph, function, **gpu) -> float:
    """How much longer the step takes with a rule, ms."""
    return (step_ps(after(graph, function, **gpu)) - step_ps(graph)) / MS


# -- what is meant -----------------------------------------------------------------------------------


def test_a_rule_tells_what_it_matched():
    found = apply_rules(chain(), [rule("b is slow")(lambda graph: graph.ops(name="^b$").takes(us=1500))])
    (one,) = found.matched[0][1]
    # One op of a template, played for 3 microbatches on 2 ranks.
    assert (one.ops, one.executions, one.names) == (1, 6, ("b",))
    assert "b is slow" in found.lines[0] and "1500 us" in found.lines[0]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda graph: graph.ops(name="gemn").takes(us=1), "matches nothing: name 'gemn'; none has"),
        (lambda graph: graph.ops(phase="foward").takes(us=1), "no op has phase 'foward'; did you mean"),
        (lambda graph: graph.ops(name="a", microbatch=7).takes(us=1), "matches nothing"),
        (
            lambda graph: graph.ops(name="a").replace(op_clas="gemm"),
            "no column 'op_clas'; did you mean 'op_cl",
        ),
        (lambda graph: graph.ops(name="a").replace(collective="all_recude"), "unknown collective"),
        (lambda graph: graph.ops(name="a").takes(us=-1), "no time of 0"),
        (lambda graph: graph.ops(name="a").insert_after("x"), "nothing says what it costs"),
        (
            lambda graph: graph.ops(name="a").wait_for(graph.ops(name="c"), same=("microbatch",)),
            "none of name",
        ),
        (lambda graph: graph.ops(name="a"), "says nothing"),
        (lambda graph: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_mistakes_are_told_with_their_rule(function, message):
    with pytest.raises(InputError, match="as the test says") as error:
        after(chain(), function)
    assert message in str(error.value)


def test_a_file_of_rules_is_read_and_its_mistakes_have_a_line(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        'from simcore.rules import rule\n\n@rule("slow")\ndef slow(graph):\n    graph.ops(nam="a")\n'
    )
    (found,) = load_rules(file)
    assert found.says == "slow"
    with pytest.raises(InputError, match=r"mine.py, line 5: TypeError"):
        apply_rules(chain(), [found])
    file.write_text("x = 1\n")
    with pytest.raises(InputError, match="has no rule"):
        load_rules(file)
    file.write_text("x = (\n")
    with pytest.raises(InputError, match="line 1"):
        load_rules(file)


def test_ops_are_chosen_by_place():
    graph = RuleGraph(chain())
    assert len(graph.ops(name="a|b", microbatch=-1)) == 4  # two of one microbatch, on two ranks
    assert len(graph.ops(name="a|b").nth(0, of="pass")) == 6
    assert len(graph.ops().nth(-1)) == 2
    assert [op.name for op in graph.ops(name="a").shifted(1)] == ["b"]
    assert len(graph.ops(name="a") | graph.ops(name="b")) == 12
    assert [op.name for op in graph.ops() - graph.ops(phase="fwd")] == ["c"]
    assert len(graph.ops(layer=0)) == len(graph.ops(where=lambda op: op.name == "c")) == 6


# -- what changes ------------------------------------------------------------------------------------


def test_times_change_by_what_is_said():
    graph = chain()
    gpu = {"gpu": CLUSTER.gpu}
    assert moved_ms(graph, lambda graph: graph.ops(name="b").takes(us=1500)) == 1.5  # 3 x 0.5
    assert moved_ms(graph, lambda graph: graph.ops(name="c").faster(2), **gpu) == -1.5
    assert moved_ms(graph, lambda graph: graph.ops(name="b", microbatch=1).delay(us=250)) == 0.25
    assert moved_ms(graph, lambda graph: graph.ops(name="c", microbatch=0).remove()) == -1
    assert moved_ms(graph, lambda graph: graph.ops(name="b").insert_after("x", us=100)) == pytest.approx(0.3)


def test_only_the_ranks_meant_change():
    graph = after(chain(), lambda graph: graph.ops(name="b", ranks=[1]).takes(us=1500))
    assert sorted(one.rank_list() for one in graph.programs) == [[0], [1]]
    result = run(graph, CLUSTER).result
    assert step_ps(graph) - step_ps(chain()) == 1.5 * MS
    assert result.times[0].end_ps.max() + 1.5 * MS == result.times[1].end_ps.max()


def test_waits_order_streams():
    """b as a copy on a stream of its own runs beside the kernels, and between them once there are waits."""

    def beside(graph):
        graph.ops(name="b").replace(stream="other", kind="memcpy")

    def behind(graph):
        graph.ops(name="b").wait_for(graph.ops(name="a"), same=("microbatch",))
        graph.ops(name="c").wait_for(graph.ops(name="b"))

    def free(graph):
        graph.ops(name="c").forget_waits()

    # a and c follow each other, 6 ms, b is beside them: 3 ms less than 9; nothing else is launched behind.
    copied = after(chain(), beside)
    assert moved_ms(chain(), beside) == pytest.approx(-3, abs=0.02)
    assert moved_ms(copied, behind) == pytest.approx(3, abs=0.02)
    # Once c waits for nothing, the last a is done after 5 ms, the last b and c after 6.
    assert moved_ms(after(copied, behind), free) == pytest.approx(-3, abs=0.02)


def test_a_wait_across_ranks_takes_the_time_of_its_flag():
    """Rank 1 may begin b only 50 us after rank 0 has ended its own: it always runs a millisecond behind."""

    def behind(graph):
        mine, its = graph.ops(name="b", ranks=[1]), graph.ops(name="b", ranks=[0])
        mine.wait_for(its, across=("dp", -1), us=50)

    graph = after(chain(), behind)
    assert step_ps(graph) - step_ps(chain()) == pytest.approx(MS + 50_000_000, abs=100_000)
    with pytest.raises(GraphError, match="do not match"):
        after(chain(), lambda g: g.ops(name="b", ranks=[1], microbatch=0).wait_for(
            g.ops(name="b", ranks=[0]), across=("dp", -1)
        ))  # fmt: skip


def test_a_library_s_ops_become_messages():
    """`put` on rank 0, `get` on rank 1: without the rule rank 1 does not wait for what it works on."""
    build = GraphBuilder(2, name="own", dims={"pp": 2})
    first, second = build.template("fwd"), build.template("fwd")
    first.compute("work", recorded_ps=MS)
    first.compute("put", op_class="copy", bytes_read=1 << 20, recorded_ps=0)
    second.compute("get", op_class="copy", bytes_written=1 << 20, recorded_ps=0)
    second.compute("work", recorded_ps=MS)
    build.program([0], [(first, 0, 0)], stage=0)
    build.program([1], [(second, 0, 0)], stage=1)
    graph = build.build()

    def paired(graph, num_bytes=None):
        graph.group("line", [[0, 1]])
        way = point_to_point("test-put", sms=0, start_s=0.0)
        graph.pair(
            graph.ops(name="put"), graph.ops(name="get"), group="line", peer=1, by=way, buffered=True,
            num_bytes=num_bytes,
        )  # fmt: skip

    # 1 MiB over NVLink takes microseconds: rank 1 now begins when rank 0 is through.
    assert 1.0 < moved_ms(graph, paired) < 1.05
    (send, recv) = [one for one in after(graph, paired).ops.num_bytes.tolist() if one]
    assert send == recv == 1 << 20
    with pytest.raises(GraphError, match="do not match"):
        after(graph, lambda graph: paired(graph, lambda op: 8 if op.name == "put" else 16))
    with pytest.raises(InputError, match="test-put is a message of two ranks, not a collective of 3"):
        NcclPlanner(Topology(CLUSTER)).plan("test-put", 1000, range(3))


def test_neighbours_fuse_to_a_kernel_that_moves_what_crosses_its_border():
    build = GraphBuilder(1, name="fuse")
    forward = build.template("fwd")
    shape = "[[1024,1024]]"
    one = {"dtype": "bfloat16", "in_shapes": shape, "out_shapes": shape, "bytes_read": 1 << 21}
    a = forward.compute("a", op_class="elementwise", bytes_written=1 << 21, alloc_bytes=1 << 21, **one)
    forward.compute("b", op_class="elementwise", bytes_written=1 << 21, data=(a,), **one)
    build.program([0], [(forward, 0, 0)])
    fused = after(build.build(), lambda graph: graph.ops(name="a|b").fuse("ab"))
    # b reads what a wrote, which never leaves the kernel: 2 MiB in and 2 MiB out instead of twice that.
    assert fused.ops.name.tolist() == ["ab"]
    assert fused.ops.bytes_read.tolist() == [1 << 21]
    with pytest.raises(InputError, match="no two of them follow"):
        after(build.build(), lambda graph: graph.ops(name="a").fuse("ab"))


def test_a_collective_by_its_flows_takes_links_and_sms_as_they_say():
    """Everything to the next rank on NVLink, by 4 SMs of 10 GB/s: 40 GB/s, far below the link."""
    name = collective("test-shift", sms=4, sm_bytes_per_s=10e9, start_s=0.0)(
        lambda nodes: [(one, (one + 1) % len(nodes), 1.0) for one in range(len(nodes))]
    )
    plan = NcclPlanner(Topology(CLUSTER)).plan(name, 400_000_000, range(8))
    assert plan.channels == 4
    assert plan.alone_ps == pytest.approx(400e6 / 40e9 * 1e12, rel=1e-3)
    assert plan.hbm_bytes_per_byte == pytest.approx(2.0)
    # Of half a byte each over the NIC to the other node, at 80% of its rate.
    collective("test-half", sms=0, network_share=0.8, start_s=0.0)(
        lambda nodes: [(one, (one + 8) % 16, 0.5) for one in range(16)]
    )
    cluster = load_cluster("h100-16")
    topology = Topology(cluster)
    plan = NcclPlanner(topology).plan("test-half", 400_000_000, range(16))
    nic = topology.links.bytes_per_s[topology.nic_out(0)]
    assert plan.alone_ps == pytest.approx(200e6 / (0.8 * nic) * 1e12, rel=1e-2)
    with pytest.raises(InputError, match="among 8 members"):
        collective("test-bad", sms=0)(lambda nodes: [(0, 8, 1.0)])
        NcclPlanner(Topology(CLUSTER)).plan("test-bad", 1000, range(8))
    with pytest.raises(InputError, match="the program's own"):
        collective("all_reduce", sms=0)(lambda nodes: [])


def test_a_definition_anew_is_what_counts():
    def rated(bytes_per_s):
        collective("test-again", sms=1, sm_bytes_per_s=bytes_per_s)(lambda nodes: [(0, 1, 1.0), (1, 0, 1.0)])
        build = GraphBuilder(2, name="again")
        build.group("dp", dims=((2, 1),))
        step = build.template("fwd")
        step.compute("a", recorded_ps=MS)
        step.collective("all_reduce", "dp", 100_000_000)
        build.program(range(2), [(step, 0, 0)])
        return step_ps(
            after(build.build(), lambda g: g.ops(kind="collective").replace(collective="test-again"))
        )

    # 100 MB at 10 GB/s and at 20: 10 and 5 ms.
    assert rated(10e9) - rated(20e9) == pytest.approx(5 * MS, rel=1e-3)


# -- what does not -----------------------------------------------------------------------------------


def test_nothing_said_is_nothing_changed():
    graph = load_graph(catalog.path("gpt-175b-pp12-tp8-dp1"))
    again, _ = reissued(graph, [])
    assert graph_hash(again) == graph_hash(graph)


@given(graphs(), st.data())
@settings(max_examples=30, deadline=None)
def test_points_on_a_stream_of_their_own_change_no_order(graph, data):
    """Ops put in anywhere leave what others wait for as it was: every flat edge between old ops is there."""
    masks = tuple(
        np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)), dtype=np.bool_)
        for n in (len(graph.flat_ops(program)) for program in graph.programs)
    )
    columns = {"kind": 7, "name": "point", "stream": "mine", "recorded_ps": 0}
    changed, _ = reissued(
        graph, [Change("before", masks, None, columns), Change("after", masks, None, columns)]
    )
    assert named_edges(changed) == named_edges(graph)


def named_edges(graph: Graph) -> list[list[tuple[int, int, int]]]:
    """Stored edges of each program's step between ops that are no points, counted among those alone."""
    found = []
    for program in graph.programs:
        number, count = {}, 0
        for place, row in enumerate(graph.flat_ops(program).row.tolist()):
            if graph.ops.name[row] != "point":
                number[place], count = count, count + 1
        edges = program_edges(graph, program)
        columns = (edges.src.tolist(), edges.dst.tolist(), edges.kind.tolist())
        found.append(sorted({
            (number[src], number[dst], kind)
            for src, dst, kind in zip(*columns, strict=True)
            if src in number and dst in number and kind != EdgeKind.LAUNCH
        }))  # fmt: skip
    return found
