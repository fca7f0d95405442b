"""A graph folder gives back what was saved, byte for byte the same for equal graphs, and refuses the rest."""

from __future__ import annotations

import contextlib
import json
import random
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings

from simcore.errors import GraphError, InputError
from simcore.graph import Strings, graph_hash, load_graph, save_graph
from tests.graph.examples import data_parallel, graphs, same_graph, two_stages

FILES = ("graph.json", "ops.parquet", "edges.parquet", "frees.parquet", "skeleton.parquet")


@pytest.fixture
def folder(tmp_path):
    """A graph folder as another program may write it: nothing says what its files were."""
    save_graph(two_stages(), tmp_path / "graph")
    (tmp_path / "graph" / "manifest.json").unlink()
    return tmp_path / "graph"


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(graphs())
def test_round_trip(tmp_path, graph):
    save_graph(graph, tmp_path / "any")
    loaded = load_graph(tmp_path / "any")
    assert same_graph(graph, loaded)
    assert graph_hash(loaded) == graph_hash(graph)


def renumbered(strings):
    """The same column with its dictionary the other way round, and one unused value."""
    values = (*reversed(strings.values), "unused")
    return Strings((len(strings.values) - 1 - strings.codes).astype(np.int32), values)


def with_other_dictionaries(graph):
    ops = replace(graph.ops, name=renumbered(graph.ops.name), stream=renumbered(graph.ops.stream))
    groups = dict(reversed(graph.groups.items()))
    return replace(graph, ops=ops, groups=groups)


def test_equal_graphs_give_equal_bytes(tmp_path):
    graph = two_stages()
    save_graph(graph, tmp_path / "one")
    save_graph(with_other_dictionaries(graph), tmp_path / "two")
    for name in FILES:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_hash_ignores_dictionaries_and_provenance():
    graph = two_stages()
    workload = replace(graph.workload, name="other", command="another command", versions={"torch": "9"})
    assert graph_hash(with_other_dictionaries(replace(graph, workload=workload))) == graph_hash(graph)


@pytest.mark.parametrize("column", ["flops", "kind", "recorded_ps", "alloc_bytes", "blocking"])
def test_hash_sees_every_number(column):
    graph = two_stages()
    changed = getattr(graph.ops, column).copy()
    changed[0] += 1
    assert graph_hash(replace(graph, ops=replace(graph.ops, **{column: changed}))) != graph_hash(graph)


def test_hash_sees_order_waits_ranks_and_workload():
    graph = two_stages()
    seen = {graph_hash(graph)}
    program = graph.programs[0]
    swapped = replace(program, microbatch=program.microbatch[::-1].copy())
    seen.add(graph_hash(replace(graph, programs=(swapped, graph.programs[1]))))
    other_wait = replace(graph.edges, ext_back=graph.edges.ext_back + 1)
    seen.add(graph_hash(replace(graph, edges=other_wait)))
    seen.add(graph_hash(replace(graph, workload=replace(graph.workload, precision="bf16"))))
    seen.add(graph_hash(replace(graph, programs=(replace(program, stage=9), graph.programs[1]))))
    assert len(seen) == 5


def test_saving_replaces_a_graph_and_leaves_nothing_else(tmp_path):
    save_graph(two_stages(), tmp_path / "graph")
    save_graph(data_parallel(), tmp_path / "graph")
    assert load_graph(tmp_path / "graph").workload.name == "data parallel"
    assert [entry.name for entry in tmp_path.iterdir()] == ["graph"]


def test_saving_over_something_else_is_refused(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.txt").write_text("years of work")
    with pytest.raises(InputError, match="is not a graph folder"):
        save_graph(two_stages(), tmp_path / "thesis")
    assert (tmp_path / "thesis" / "chapter1.txt").read_text() == "years of work"


def test_saving_over_a_graph_of_unknown_origin_is_refused(folder):
    with pytest.raises(InputError, match=r"is not a graph folder and not empty: no manifest.json names"):
        save_graph(two_stages(), folder)
    assert load_graph(folder).workload.name == "two stages"


@pytest.mark.parametrize("name", FILES)
def test_a_change_after_saving_is_named(tmp_path, name):
    save_graph(two_stages(), tmp_path / "graph")
    content = bytearray((tmp_path / "graph" / name).read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "graph" / name).write_bytes(content)
    with pytest.raises(GraphError, match=f"{name}: changed since it was written"):
        load_graph(tmp_path / "graph")


def test_a_failing_save_leaves_the_old_graph(tmp_path, monkeypatch):
    save_graph(two_stages(), tmp_path / "graph")

    def fail(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(pq, "write_table", fail)
    with pytest.raises(KeyboardInterrupt):
        save_graph(data_parallel(), tmp_path / "graph")
    assert load_graph(tmp_path / "graph").workload.name == "two stages"
    assert [entry.name for entry in tmp_path.iterdir()] == ["graph"]


def test_a_malformed_graph_is_not_saved(tmp_path):
    graph = two_stages()
    edges = replace(graph.edges, dst=graph.edges.dst + 100)
    with pytest.raises(GraphError, match=r"edges\.dst"):
        save_graph(replace(graph, edges=edges), tmp_path / "graph")
    assert not (tmp_path / "graph").exists()


def test_missing_folder_and_files(tmp_path, folder):
    with pytest.raises(InputError, match="no such graph folder"):
        load_graph(tmp_path / "nowhere")
    for name in FILES:
        kept = (folder / name).read_bytes()
        (folder / name).unlink()
        with pytest.raises(InputError, match=f"{name}: missing"):
            load_graph(folder)
        (folder / name).write_bytes(kept)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("share", [0.0, 0.5, 0.95])
def test_truncated_files(folder, name, share):
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: int(len(content) * share)])
    with pytest.raises(GraphError, match=name):
        load_graph(folder)


def test_damaged_bytes_never_end_in_a_traceback(folder):
    generator = random.Random(20)
    intact = graph_hash(load_graph(folder))
    for name in FILES:
        content = (folder / name).read_bytes()
        for _ in range(30):
            damaged = bytearray(content)
            damaged[generator.randrange(len(damaged))] = generator.randrange(256)
            (folder / name).write_bytes(damaged)
            with contextlib.suppress(InputError):  # GraphError is one
                load_graph(folder)
        (folder / name).write_bytes(content)
    assert graph_hash(load_graph(folder)) == intact


def edit_header(folder, change):
    path = folder / "graph.json"
    header = json.loads(path.read_text())
    change(header)
    path.write_text(json.dumps(header))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda h: h.update(schema_version=99), "schema version 99, this program reads 1"),
        (lambda h: h.update(template_nams=[]), "unknown key 'template_nams'; did you mean 'template_names'"),
        (lambda h: h.pop("groups"), "key 'groups' is missing"),
        (lambda h: h["workload"].update(world_size=-2), "workload.world_size is -2"),
        (lambda h: h["workload"].update(seq_len=float("nan")), "NaN is no number"),
        (lambda h: h["workload"].update(sequence=3), "unknown key 'workload.sequence'"),
        (lambda h: h.update(template_start=[0, 99]), "template_start must run from 0 to 5"),
        (lambda h: h.update(template_start=[0, 2.5, 5]), "template_start.1 is 2.5: .* valid integer"),
        (lambda h: h["programs"][0].pop("ranks"), "key 'programs.0.ranks' is missing"),
        (lambda h: h["programs"][0].update(ranks=[[0, 7, 1]]), "does not lie in the world of 2"),
        (lambda h: h["programs"][0]["memory"].update(peak=-1), "memory.peak is -1"),
        (
            lambda h: h["groups"][0].update(dims=[[2, 0]]),
            "groups.0.dims.0.1 is 0: .* greater than or equal to 1",
        ),
        (lambda h: h.update(groups=3), "groups is 3: input should be a valid list"),
        (lambda h: h["groups"].append(h["groups"][0]), "process group 'pp' is described twice"),
        (lambda h: h["workload"].update(options="none"), "workload.options is 'none'"),
        (lambda h: h["workload"].update(precision=["bf16"]), "workload.precision is .'bf16'."),
        (lambda h: h["workload"].update(world_size=10**15), "workload.world_size is 1000000000000000"),
        (lambda h: h["programs"][0].update(ranks=[[0, 1, 0]]), "rank range 0:1:0"),
    ],
)
def test_bad_headers(folder, change, reason):
    edit_header(folder, change)
    with pytest.raises(GraphError, match=reason):
        load_graph(folder)


def edit_table(folder, name, change):
    path = folder / f"{name}.parquet"
    table = pq.read_table(path)
    pq.write_table(change(table), path)


def with_column(name, values):
    def change(table):
        return table.set_column(table.column_names.index(name), name, pa.array(values))

    return change


OPS = 5


@pytest.mark.parametrize(
    ("table", "change", "reason"),
    [
        ("ops", with_column("flops", [float("nan")] * OPS), "'flops' holds nan in row 0"),
        ("ops", with_column("flops", [1.5] * OPS), "'flops' holds type double"),
        ("ops", with_column("flops", [-3] * OPS), "ops.flops: row 0 is -3, must be at least 0"),
        ("ops", with_column("flops", [1, None, 1, 1, 1]), "'flops' has 1 empty cell"),
        ("ops", with_column("kind", [42] * OPS), "ops.kind: row 0 is 42, must be in 0 to 8"),
        ("ops", with_column("name", [1] * OPS), "'name' has type int64, expected strings"),
        ("ops", with_column("phase", ["fwdd"] * OPS), "unknown 'fwdd'; did you mean 'fwd'"),
        ("ops", with_column("collective", ["allreduce"] * OPS), "did you mean 'all_reduce'"),
        ("ops", with_column("group", ["ppp"] * OPS), "unknown process group 'ppp'; did you mean 'pp'"),
        ("ops", lambda t: t.append_column("flps", pa.array([0] * OPS)), "unknown column 'flps'; did you"),
        ("ops", lambda t: t.drop_columns(["dtype"]), "column 'dtype' is missing"),
        ("ops", lambda t: t.replace_schema_metadata({"simcore.graph.schema": "7"}), "schema version 7"),
        ("ops", lambda t: t.slice(1), "template_start"),
        ("edges", with_column("dst", [1, 3, 99]), "edges.dst: row 2 is 99"),
        ("edges", with_column("src", [0, 2, -4]), "edges.src: row 2 is -4"),
        ("edges", with_column("src", [0, 0, 2]), "joins rows 0 and 3 of two templates"),
        ("edges", with_column("src", [1, 2, 2]), "depends on row 1, which is not issued before it"),
        ("edges", with_column("kind", [0, 0, 2]), "DATA and WAIT are stored"),
        ("edges", with_column("dst", [3, 3, 1]), "edges must be sorted by dst"),
        ("skeleton", with_column("template", [0, 0, 1, 9]), "template: row 1 is 9"),
        ("skeleton", with_column("program", [0, 0, 1, 5]), "programs must be 0 to 1"),
        ("skeleton", with_column("microbatch", [0, 0, 0, -7]), "microbatch: row 1 is -7"),
        ("skeleton", with_column("chunk", [0, 0, 0, 3]), "chunk: row 1 is 3"),
    ],
)
def test_bad_tables(folder, table, change, reason):
    edit_table(folder, table, change)
    with pytest.raises(GraphError, match=reason) as error:
        load_graph(folder)
    assert str(folder) in str(error.value)


def test_string_codes_out_of_range(folder):
    graph = two_stages()
    names = Strings(np.array([0, 1, 2, 77, 0], dtype=np.int32), ("a", "b", "c"))
    with pytest.raises(GraphError, match=r"name \(string code\): row 3 is 77"):
        save_graph(replace(graph, ops=replace(graph.ops, name=names)), folder)


@pytest.mark.parametrize(
    "shapes", ["x", "[[", "[[-1, 2]]", "[8, 8]", "[[1e3]]", "[[281474976710656]]", "{}x", "[[true]]"]
)
def test_shapes_that_are_none_name_template_and_op(tmp_path, shapes):
    graph = two_stages()
    texts = Strings.encode([shapes] * len(graph.ops))
    save_graph(replace(graph, ops=replace(graph.ops, in_shapes=texts)), tmp_path / "graph")
    with pytest.raises(GraphError, match=r"in_shapes of op 'gemm' \(row 0, template 'fwd'\): .* no JSON"):
        load_graph(tmp_path / "graph")


@pytest.mark.parametrize(("seconds", "told"), [(43_200, r"8.64e\+04"), (4_611_686, r"9.22e\+06")])
def test_recorded_durations_of_more_than_a_day_are_refused(tmp_path, seconds, told):
    graph = two_stages()
    recorded = graph.ops.recorded_ps.copy()
    recorded[0] = seconds * 10**12 + 10**9  # twice in a step; 9,223,372 s are the most that 64 bits hold
    with pytest.raises(GraphError, match=f"add up to {told} s, more than the 86,400 s"):
        save_graph(replace(graph, ops=replace(graph.ops, recorded_ps=recorded)), tmp_path / "graph")
