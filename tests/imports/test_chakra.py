"""Chakra files: any graph goes out and comes back as the same ops, sizes, groups and dependencies."""

import errno
import gzip
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simcore.apps.main import app
from simcore.apps.replay.play import play
from simcore.apps.run import finished
from simcore.errors import InputError
from simcore.graph import Graph, GraphBuilder, save_graph, verify
from simcore.graph.flatten import resolve_edges
from simcore.graph.ops import OP_COLUMNS, EdgeKind, OpKind
from simcore.graph.schedules import one_f_one_b
from tests.pipelines import pipeline_graph
from workloads.imports import import_traces
from workloads.imports.chakra import export_chakra
from workloads.imports.chakra.read import ChakraNode, read_nodes, write_messages, write_nodes
from workloads.imports.chakra.schema import NodeType
from workloads.imports.files import TraceFile


def hand_built() -> Graph:
    """Two stages of two ranks: computes, collectives on a stream, a pipeline exchange, host time, a wait."""
    build = GraphBuilder(world_size=4, name="hand")
    build.group("dp", dims=((2, 1),))
    build.group("pp", dims=((2, 2),))
    head, tail = build.template("fwd"), build.template("fwd")
    gemm = head.compute("gemm", op_class="gemm", flops=10**9, bytes_read=4096, dtype="bfloat16",
                        in_shapes="[[8,8],[8,8]]", out_shapes="[[8,8]]")  # fmt: skip
    head.host("python", 5_000_000)
    gather = head.collective("all_gather", "dp", 1000, waits=(gemm,), data=(gemm,))
    use = head.compute("use", recorded_ps=7_000_001, waits=(gather,))
    head.send("pp", +1, 4096, waits=(use,))
    head.memcpy("Memcpy DtoH", 64, stream="copy")
    head.sync()
    got = tail.recv("pp", -1, 4096)
    tail.compute("gemm", waits=(got,), data=(got,), recorded_ps=1_000)
    tail.collective("all_reduce", "dp", 512)
    build.program([0, 1], [(head, 0, 0), (head, 1, 0)], stage=0)
    build.program([2, 3], [(tail, 0, 0), (tail, 1, 0)], stage=1)
    return build.build()


def played(graph, rank):
    """What a rank does, without regard to how the graph stores it."""
    program = graph.programs[int(graph.program_of_rank[rank])]
    flat = graph.flat_ops(program)
    columns = {
        name: [getattr(graph.ops, name)[row] for row in flat.row]
        for name in OP_COLUMNS
        if name not in ("group", "forward_op")
    }
    groups = [
        graph.groups[name].ranks_of(rank) if name else ()
        for name in (graph.ops.group[row] for row in flat.row)
    ]
    edges = {
        kind: sorted(zip(*(ends.tolist() for ends in resolve_edges(graph, program, kind, flat)), strict=True))
        for kind in (EdgeKind.WAIT, EdgeKind.DATA)
    }
    return columns, groups, edges


def test_a_graph_comes_back(tmp_path):
    graph = hand_built()
    export_chakra(graph, tmp_path)
    back = import_traces([tmp_path]).graph
    assert back.world_size == graph.world_size
    assert not verify(back)
    for rank in range(graph.world_size):
        assert played(back, rank) == played(graph, rank)


def test_a_pipeline_comes_back(tmp_path):
    graph = pipeline_graph(one_f_one_b(4, 8), forward=1_000, backward=2_000, num_bytes=4096, tp=2)
    export_chakra(graph, tmp_path)
    back = import_traces([tmp_path]).graph
    for rank in range(graph.world_size):
        assert played(back, rank) == played(graph, rank)


def test_ranks_without_their_peers_stand_alone(tmp_path):
    export_chakra(hand_built(), tmp_path, ranks=[0, 1])
    job = import_traces([tmp_path])
    assert not verify(job.graph)
    assert any("2 sends and receives" not in d and "sends and receives" in d for d in job.report.doubts())


def test_an_export_that_is_not_as_it_was_written_is_refused(tmp_path):
    export_chakra(hand_built(), tmp_path)
    rank = tmp_path / "rank.2.et"
    whole = rank.read_bytes()
    for data, told in (
        (
            whole.replace(b"gemm", b"gemv"),
            r"rank\.2\.et: changed since it was written; the Chakra export folder",
        ),
        (
            whole[:-9],
            rf"rank\.2\.et: {len(whole) - 9:,} of {len(whole):,} bytes; the Chakra export folder is",
        ),
        (None, r"rank\.2\.et: missing; the Chakra export folder is incomplete"),
    ):
        rank.write_bytes(data) if data is not None else rank.unlink()
        for given in (tmp_path, tmp_path / "rank.2.et") if data is not None else (tmp_path,):
            with pytest.raises(InputError, match=told):
                import_traces([given])
        job = import_traces([tmp_path], skip_bad=True)
        assert job.graph.world_size == 3
        assert [doubt for doubt in job.report.doubts() if re.search(told, doubt)]
    rank.write_bytes(whole.replace(b"gemm", b"gemv"))
    for manifest in ('{"name": "of a web page"}', None):  # without ours, files are taken as they are
        path = tmp_path / "manifest.json"
        path.write_text(manifest) if manifest else path.unlink()
        assert import_traces([tmp_path]).graph.world_size == 4
    (tmp_path / "manifest.json").write_text('{"files": {"rank.2')
    with pytest.raises(InputError, match=r"manifest\.json"):
        import_traces([tmp_path])


def test_sizes_and_types_are_chakras(tmp_path):
    export_chakra(hand_built(), tmp_path, ranks=[1])
    nodes = {node.name: node for node in read_nodes(TraceFile(tmp_path / "rank.1.et"))}
    gather = nodes["nccl::all_gather"]
    assert gather.type == NodeType.COMM_COLL
    assert gather.attributes["comm_size"] == 500  # half of the 1000 bytes that two ranks gather
    assert gather.attributes["comm_type"] == 2
    send = nodes["nccl::send"]
    assert (send.type, send.attributes["comm_src"], send.attributes["comm_dst"]) == (NodeType.COMM_SEND, 1, 3)
    gemm = nodes["gemm"]
    assert (gemm.type, gemm.attributes["num_ops"], gemm.attributes["tensor_size"]) == (
        NodeType.COMP, 10**9, 4096,
    )  # fmt: skip


def stream(path, nodes):
    with path.open("wb") as handle:
        write_nodes(handle, iter(nodes))
    return path


US = 1_000_000


def timed_nodes():
    """Compute, reduce, compute; as a converter writes them: no streams, a host op that launches."""
    return [
        ChakraNode(1, "aten::mm", NodeType.COMP, duration_ps=2 * US, start_ps=10 * US,
                   attributes={"is_cpu_op": True}),
        ChakraNode(2, "sgemm", NodeType.COMP, (1,), (1,), 12 * US, 50 * US,
                   attributes={"num_ops": 100, "tensor_size": 64, "is_cpu_op": False}),
        ChakraNode(3, "ncclDevKernel_AllReduce", NodeType.COMM_COLL, (), (2,), 62 * US, 30 * US,
                   attributes={"comm_type": 0, "comm_size": 4096, "pg_name": "0"}),
        ChakraNode(4, "relu", NodeType.COMP, (), (3,), 92 * US, 8 * US, attributes={"is_cpu_op": False}),
    ]  # fmt: skip


def moved(nodes, shift_ps):
    return [replace(node, start_ps=node.start_ps + shift_ps) for node in nodes]


def test_nodes_that_start_weeks_apart_are_refused(tmp_path):
    stream(tmp_path / "job.0.et", timed_nodes())
    stream(tmp_path / "job.1.et", moved(timed_nodes(), 8 * 86400 * 10**6 * US))
    with pytest.raises(InputError, match=r"job.1.et: node 4 starts 8 days after the first node of all"):
        import_traces([tmp_path])


@pytest.mark.parametrize("since_s", [0, 1_700_000_000])
def test_nodes_with_times_replay(tmp_path, since_s):
    """Times count from any begin: that of the file, or of the epoch."""
    for rank in (0, 1):
        stream(tmp_path / f"job.{rank}.et", moved(timed_nodes(), since_s * 10**6 * US))
    (tmp_path / "comm_group.json").write_text('{"0": [0, 1]}')
    job = import_traces([tmp_path])
    assert not verify(job.graph)
    for row in play(job).steps():
        # 50 + 30 + 8 us: each waits for the one before
        assert row.recorded.span == pytest.approx(88e-6)
        assert row.replayed.span == pytest.approx(88e-6)
        assert row.replayed.exposed_communication == pytest.approx(30e-6)
    collective = job.graph.ops.kind == int(OpKind.COLLECTIVE)
    assert set(job.graph.ops.num_bytes[collective].tolist()) == {4096}
    assert any("streams are not recorded" in doubt for doubt in job.report.doubts())


def test_control_that_cannot_be_kept_is_left_aside_and_said(tmp_path):
    """Chakra's feeder goes by data alone: control on nodes of no file, or in circles, is no error."""
    nodes = timed_nodes()
    nodes[0] = replace(nodes[0], ctrl_deps=(77, 2))  # 77 is nowhere; 2 needs the data of 1
    broadcast = ChakraNode(5, "c10d::broadcast_", NodeType.COMM_COLL, (88,), (), 70 * US, 3 * US,
                           attributes={"is_cpu_op": True})  # fmt: skip
    job = import_traces([stream(tmp_path / "job.0.et", [*nodes, broadcast])])
    doubts = " ".join(job.report.doubts())
    assert "2 control dependencies on nodes that the files lack are left aside" in doubts
    assert "1 control dependencies that go in circles are left aside" in doubts
    # 1 comes first for its data; a framework's call that communicates is the host's time, not a collective.
    names = job.graph.ops.name.tolist()
    assert names.index("aten::mm") < names.index("sgemm")
    assert job.graph.ops.kind[names.index("c10d::broadcast_")] == OpKind.HOST
    (row,) = play(job).steps()
    assert row.recorded.span == pytest.approx(88e-6)  # 50 + 30 + 8
    assert row.replayed.span == pytest.approx(88e-6)


def test_groups_may_be_metadata_nodes_and_packed(tmp_path):
    groups = '[\'[{"pg_name": "0", "ranks": [0]}]\']'
    init = ChakraNode(9, "## process_group:init ##", NodeType.METADATA, input_values=groups)
    path = stream(tmp_path / "job.0.et", [init, *timed_nodes()])
    packed = tmp_path / "packed.0.et.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    graph = import_traces([packed]).graph
    assert len(graph.ops) == 4


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"data_deps": (77,)}, r"node 4 \(relu\) depends on 77, which is missing"),
        ({"data_deps": (4,)}, r"node 4 \(relu\) depends on itself"),
        ({"id": 2}, r"two nodes have the id 2"),
        ({"attributes": {"num_ops": -5}}, r"node 4 \(relu\): num_ops -5 is absurd"),
        ({"type": NodeType.COMM_COLL, "attributes": {"comm_type": 99}}, r"comm_type 99 is no collective"),
        ({"type": NodeType.COMM_SEND, "attributes": {"comm_dst": -5}}, r"comm_dst -5 is no rank of"),
        ({"type": NodeType.COMM_COLL, "attributes": {"comm_type": 0, "pg_name": "9"}},
         r"rank 0 is not in process group '9': \[1, 2\]"),
    ],
)  # fmt: skip
def test_bad_nodes_are_named(tmp_path, change, reason):
    from dataclasses import replace

    nodes = timed_nodes()
    nodes[3] = replace(nodes[3], **change)
    (tmp_path / "comm_group.json").write_text('{"0": [0], "9": [1, 2]}')
    stream(tmp_path / "job.0.et", nodes)
    with pytest.raises(InputError, match=r"job\.0\.et.*" + reason):
        import_traces([tmp_path])


def test_damaged_streams_are_refused(tmp_path):
    whole = stream(tmp_path / "job.0.et", timed_nodes()).read_bytes()
    for name, data, reason in (
        ("cut.1.et", whole[:-3], r"byte \d+: a message of \d+ bytes, of which \d+ are there"),
        ("text.2.et", b"hello, this is not a trace at all", r"text\.2\.et: byte "),
        ("long.3.et", b"\xff\xff\xff\xff\x7f", r"not a Chakra file, or damaged"),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InputError, match=reason):
            import_traces([tmp_path / name])
    job = import_traces([tmp_path], skip_bad=True)
    assert job.graph.world_size == 1
    assert sum("left out" in doubt for doubt in job.report.doubts()) == 3


def test_files_of_one_rank_are_refused(tmp_path):
    paths = [stream(tmp_path / f"{name}.0.et", timed_nodes()[:2]) for name in "ab"]
    with pytest.raises(InputError, match="both of rank 0"):
        import_traces(paths)


def test_ranks_outside_the_world_are_refused(tmp_path):
    with pytest.raises(InputError, match="rank 9 is outside the world of 4 ranks"):
        export_chakra(hand_built(), tmp_path, ranks=[9])


def test_an_export_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    export_chakra(hand_built(), tmp_path / "out", ranks=[0])
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}

    def full_disk(handle, nodes):
        if "rank.1" in handle.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_messages(handle, nodes)

    monkeypatch.setattr("workloads.imports.chakra.export.write_messages", full_disk)
    for target in ("out", "new"):
        with pytest.raises(InputError, match=f"cannot write .*{target}: No space left on device"):
            export_chakra(hand_built(), tmp_path / target)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_an_export_takes_no_other_files_with_it(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years")
    with pytest.raises(InputError, match=r"no manifest.json names 'thesis.txt' as ours"):
        export_chakra(hand_built(), tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.txt"]


def test_the_command_writes_a_graph_folder(tmp_path, capsys):
    save_graph(hand_built(), tmp_path / "graph")
    finished.export_chakra(str(tmp_path / "graph"), tmp_path / "out", ranks="0,2-3", as_json=True)
    told = json.loads(capsys.readouterr().out)
    # Ranks 0 and 2, 3: two microbatches of 7 and of 3 ops, and a node of groups each.
    assert (told["ranks"], told["nodes"]) == (3, 15 + 7 + 7)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "comm_group.json", "manifest.json", "rank.0.et", "rank.2.et", "rank.3.et",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["interleaved", "titan-fsdp"])
def test_a_traced_program_that_went_out_is_played_as_it_would_be_here(name, tmp_path):
    """The same question, the same answer: kernels go out as the usual build launches them."""
    graph = Path(__file__).parents[1] / "models" / "graphs" / name
    cluster = ["--cluster", "h100-8", "--json", "--out"]
    steps = []
    for words in (
        ["export-chakra", str(graph), "--out", str(tmp_path / "out"), "--json"],
        ["replay", str(tmp_path / "out"), *cluster, str(tmp_path / "replayed")],
        ["run-sim", str(graph), *cluster, str(tmp_path / "run")],
    ):
        found = CliRunner().invoke(app, words)
        assert found.exit_code == 0, found.output
        steps.append(json.loads(found.stdout).get("step_time_s"))
    assert steps[1] == steps[2]
