"""Execution traces: alone, and joined with the Kineto trace of the same run."""

import json

import pytest

from simcore.apps.replay.play import play
from simcore.errors import InputError
from simcore.graph import verify
from simcore.graph.ops import EdgeKind, OpKind
from tests.imports.traces import launched, write
from workloads.imports import import_traces

FLOAT = "Tensor(float)"


def node(number: int, name: str, inputs=(), outputs=(), *, rf=0, parent=1, tid=1, schema="1.0.1", **attrs):
    """A node of either schema; tensors are (storage, shape)."""
    sides = [
        (
            [[100 + s, s, 0, 1, 4, "cuda:0"] for s, _ in tensors],
            [list(shape) for _, shape in tensors],
            [FLOAT] * len(tensors),
        )
        for tensors in (inputs, outputs)
    ]
    if schema == "1.0.1":
        (iv, ish, it), (ov, osh, ot) = sides
        return {
            "name": name, "id": number, "rf_id": rf, "parent": parent, "tid": tid, "inputs": iv,
            "input_shapes": ish, "input_types": it, "outputs": ov, "output_shapes": osh, "output_types": ot,
        }  # fmt: skip
    keys = ("values", "shapes", "types")
    return {
        "id": number, "name": name, "ctrl_deps": parent,
        "inputs": dict(zip(keys, sides[0], strict=True)), "outputs": dict(zip(keys, sides[1], strict=True)),
        "attrs": [{"name": "rf_id", "type": "uint64", "value": rf},
                  {"name": "tid", "type": "uint64", "value": tid},
                  *({"name": k, "type": "", "value": v} for k, v in attrs.items())],
    }  # fmt: skip


def root(schema="1.0.1"):
    return node(1, "[pytorch|profiler|execution_trace|thread]", schema=schema)


def trace(path, nodes, schema="1.0.1"):
    path.write_text(json.dumps({"schema": schema, "pid": 1, "nodes": nodes, "finish_ts": 5}))
    return path


def matmuls(schema="1.0.1"):
    return [
        root(schema),
        node(2, "aten::linear", [(1, (8, 16)), (2, (32, 16))], [(3, (8, 32))], rf=4, schema=schema),
        node(3, "aten::addmm", [(9, (32,)), (1, (8, 16)), (2, (16, 32))], [(3, (8, 32))], rf=5, parent=2,
             schema=schema),
        node(4, "aten::relu", [(3, (8, 32))], [(4, (8, 32))], rf=6, schema=schema),
    ]  # fmt: skip


def cpu_op(name: str, ts: float, dur: float, **args: object) -> dict:
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 9, "tid": 1, "ts": ts, "dur": dur, "args": args}


def timed(path, ids: bool):
    numbers = [{"Record function id": k} if ids else {} for k in (4, 5, 6)]
    return write(path, [
        cpu_op("aten::linear", 0, 30, **numbers[0]), cpu_op("aten::addmm", 1, 28, **numbers[1]),
        *launched("sgemm", 5, 40, 50, corr=1), *launched("splitKreduce", 15, 91, 5, corr=2),
        cpu_op("aten::relu", 40, 10, **numbers[2]), *launched("relu_kernel", 42, 97, 5, corr=3),
    ])  # fmt: skip


@pytest.mark.parametrize("ids", [True, False])
@pytest.mark.parametrize("schema", ["1.0.1", "1.1.1-chakra.0.0.4"])
def test_kernels_get_the_tensors_of_their_calls(tmp_path, schema, ids):
    job = import_traces([
        trace(tmp_path / "et.json", matmuls(schema), schema), timed(tmp_path / "k.json", ids)
    ])  # fmt: skip
    ops = job.graph.ops
    row = {name: ops.name.tolist().index(name) for name in ("sgemm", "splitKreduce", "relu_kernel")}
    gemm = row["sgemm"]
    assert ops.op_class[gemm] == "gemm"
    assert json.loads(ops.in_shapes[gemm]) == [[32], [8, 16], [16, 32]]
    assert json.loads(ops.out_shapes[gemm]) == [[8, 32]]
    assert ops.flops[gemm] == 2 * 8 * 16 * 32
    assert ops.bytes_read[gemm] == 4 * (32 + 8 * 16 + 16 * 32)
    assert ops.bytes_written[gemm] == 4 * 8 * 32
    # The second kernel of the call does none of its work.
    assert (ops.op_class[row["splitKreduce"]], ops.flops[row["splitKreduce"]]) == ("other", 0)
    assert ops.op_class[row["relu_kernel"]] == "elementwise"
    assert "3 of 3 calls" in job.report.found[0]
    (step,) = play(job).steps()
    assert step.replayed.span == pytest.approx(62e-6)  # from 40 to 102 us


def test_collectives_get_group_and_size(tmp_path):
    groups = json.dumps([{"pg_name": "7", "ranks": [0, 1], "group_size": 2}])
    schema = "1.1.1-chakra.0.0.4"
    init = node(2, "## process_group:init ##", schema=schema)
    init["inputs"] = {"values": [groups], "shapes": [[]], "types": ["String"]}
    comms = node(
        4, "record_param_comms", [(5, (64,))], rf=3, parent=3, schema=schema, pg_name="7",
        collective_name="allreduce", dtype="Float", in_msg_nelems=64, out_msg_nelems=64, pg_size=2,
    )  # fmt: skip
    nodes = [root(schema), init, node(3, "c10d::allreduce_", [(5, (64,))], rf=2, schema=schema), comms]
    kineto = write(
        tmp_path / "k.json",
        [
            cpu_op("c10d::allreduce_", 0, 20, **{"Record function id": 2}),
            cpu_op("record_param_comms", 1, 18, **{"Record function id": 3}),
            *launched("ncclDevKernel_AllReduce_Sum_f32", 5, 12, 30, corr=1),
        ],
    )
    job = import_traces([kineto, trace(tmp_path / "et.json", nodes, schema)])
    told = job.ranks[0].recorded.collectives
    assert told is not None
    assert (told.collective[0], told.num_bytes[0], told.members[0]) == ("all_reduce", 256, (0, 1))


def test_an_execution_trace_alone_is_a_graph_without_times(tmp_path):
    job = import_traces([trace(tmp_path / "et.json", matmuls())])
    ops = job.graph.ops
    assert ops.name.tolist() == ["aten::addmm", "aten::relu"]  # linear only calls addmm
    assert ops.recorded_ps.tolist() == [-1, -1]
    assert ops.flops.tolist() == [2 * 8 * 16 * 32, 0]
    assert job.graph.edges.kind.tolist() == [int(EdgeKind.DATA)]  # relu reads what addmm wrote
    assert not verify(job.graph)
    assert any("no durations" in doubt for doubt in job.report.doubts())


def test_ranks_of_execution_traces_meet_in_their_groups(tmp_path):
    for rank in (0, 1):
        comms = node(2, "record_param_comms", [(5, (64,))], rf=3)
        comms["inputs"] += [17, rank, "allreduce"]
        comms["input_shapes"] += [[], [], []]
        comms["input_types"] += ["Int", "Int", "String"]
        trace(tmp_path / f"et{rank}.json", [root(), comms])
    graph = import_traces([tmp_path]).graph
    assert graph.world_size == 2
    assert graph.ops.kind.tolist() == [int(OpKind.COLLECTIVE)] * 2
    assert graph.ops.num_bytes.tolist() == [256, 256]
    assert graph.groups[graph.ops.group[0]].size == 2
    assert not verify(graph)


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ([root(), root()], r"node 1 has the id 1 of an earlier node"),
        ([root(), {"id": 3}], r"node 1 has no name"),
        ([root(), {"name": "x"}], r"node 1 has no id"),
        ([root(), node(2, "aten::mm", [(1, (1 << 30, 1 << 30))])], r"node 1 has a tensor of shape"),
        ([], r"without nodes"),
    ],
)
def test_bad_nodes_are_named(tmp_path, nodes, reason):
    with pytest.raises(InputError, match=r"et\.json.*" + reason):
        import_traces([trace(tmp_path / "et.json", nodes)])


def test_a_truncated_execution_trace_can_be_left_out(tmp_path):
    kineto = timed(tmp_path / "k.json", ids=False)
    whole = trace(tmp_path / "et.json", matmuls()).read_text()
    (tmp_path / "et.json").write_text(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"et\.json: character \d+: "):
        import_traces([tmp_path])
    job = import_traces([tmp_path], skip_bad=True)
    assert len(job.ranks) == 1
    assert kineto.is_file()


def test_a_truncated_kineto_trace_takes_its_execution_trace_along(tmp_path):
    for rank in (0, 1):
        trace(tmp_path / f"et{rank}.json", matmuls())
        timed(tmp_path / f"k{rank}.json", ids=False)
    bad = tmp_path / "k0.json"
    bad.write_text(bad.read_text()[:-30])
    with pytest.raises(InputError, match=r"k0\.json: "):
        import_traces([tmp_path])
    job = import_traces([tmp_path], skip_bad=True)
    assert [rank.file for rank in job.report.ranks] == [str(tmp_path / "k1.json")]
    assert "k0.json: " in str(job.report.skipped)
    assert "et0.json: the Kineto trace of the same rank was left out" in str(job.report.skipped)
    assert "3 of 3 calls" in job.report.found[0]  # rank 1's own, not that of the first file


def test_formats_that_do_not_belong_together_are_named(tmp_path):
    from tests.imports.nsys_files import write as write_database

    database = write_database(tmp_path / "t.sqlite", StringIds=[{"id": 1, "value": "x"}])
    with pytest.raises(InputError, match=r"do not belong together \(.*k\.json; .*t\.sqlite\)"):
        import_traces([timed(tmp_path / "k.json", ids=True), database])
