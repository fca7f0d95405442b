"""Wrong values in the other formats' recordings: refused with file and place."""

import json

import pytest

from simcore.errors import InputError
from tests.imports import test_pipeline_log, test_xla
from tests.imports.test_execution_traces import matmuls, node, trace
from tests.imports.test_stragglers import two_by_two
from tests.imports.test_stragglers import write as write_workers
from tests.imports.traces import launched
from tests.imports.traces import write as write_kineto
from workloads.imports import import_traces
from workloads.imports.chakra.read import ChakraNode, write_nodes
from workloads.imports.chakra.schema import NodeType
from workloads.imports.nsys.nvtx import _payload

#: JSON in a text of a trace that no reader of JSON takes.
_NO_JSON = ["[" * 100_000, "[" + "9" * 5000 + "]", "[²]"]


@pytest.mark.parametrize(
    "text", [*_NO_JSON, *(json.dumps([{"pg_name": "7", "ranks": {t: 1}}]) for t in ("²", "9" * 5000))]
)
def test_groups_that_cannot_be_read_are_none(tmp_path, text):
    init = node(9, "## process_group:init ##", schema="1.1.1-chakra.0.0.4")
    init["inputs"] = {"values": [text], "shapes": [[]], "types": ["String"]}
    nodes = [*matmuls("1.1.1-chakra.0.0.4"), init]
    job = import_traces([trace(tmp_path / "et.json", nodes, "1.1.1-chakra.0.0.4")])
    assert job.graph.ops.name.tolist()[:2] == ["aten::addmm", "aten::relu"]


@pytest.mark.parametrize("text", _NO_JSON)
def test_ranks_that_cannot_be_read_are_unknown(tmp_path, text):
    said = {"Collective name": "allreduce", "In msg nelems": 8, "dtype": "Float", "Process Group Ranks": text}
    events = launched("ncclDevKernel_AllReduce", 0, 10, 20, corr=1, **said)
    job = import_traces([write_kineto(tmp_path / "t.json", events)])
    assert job.ranks[0].recorded.collectives.members == ((),)
    assert _payload(text) == ("", 0, 0)


# Execution traces.


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": 5}, "node 1 has name 5, no text"),
        ({"id": "2"}, "node 1 has id '2', no whole number"),
        ({"id": 1 << 70}, "node 1 has id 1180591620717411303424, no whole number"),
        ({"rf_id": [1]}, r"node 1 has rf_id \[1\], no whole number"),
        ({"parent": {}}, "node 1 has parent {}, no whole number"),
        ({"inputs": "x"}, "node 1 has inputs 'x', no list"),
        ({"input_types": {"a": 1}}, "node 1 has input_types {'a': 1}, no list"),
        ({"attrs": [7]}, r"node 1 has attrs \[7\], no list of attributes"),
    ],
)
def test_nodes_of_wrong_types(tmp_path, fields, message):
    nodes = matmuls()
    nodes[1] |= fields
    with pytest.raises(InputError, match=rf"et\.json: {message}"):
        import_traces([trace(tmp_path / "et.json", nodes)])


# Thunks of XLA.


def xla(path, hlo=(), **thunk):
    first = {"op": "make", "cs": 0, "ce": 1, "gs": 2, "ge": 5, "n": 1} | thunk
    path.write_text(json.dumps({"ranks": {"rank0": [{"thunks": [first]}]}, "hlo": list(hlo)}))
    return path


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"operands": 4}, "has operands 4, no list of names"),
        ({"operands": [4]}, r"has operands \[4\], no list of names"),
        ({"control": 1.5}, "has control 1.5, no list of names"),
        ({"out_bytes": 1 << 60}, "has out_bytes 1152921504606846976, no size"),
        ({"groups": [[-1]]}, r"has groups \[\[-1\]\], no lists of ranks"),
        ({"name": None}, "has no name"),
    ],
)
def test_instructions_of_wrong_types(tmp_path, fields, message):
    entry = test_xla.instruction("make", "fusion") | fields
    path = xla(tmp_path / "x.json", [{"instructions": [entry]}])
    with pytest.raises(InputError, match=rf"x\.json: hlo\[0\]\.instructions\[0\]: {message}"):
        import_traces([path])


def test_a_launch_that_never_returns(tmp_path):
    with pytest.raises(InputError, match=r"thunk 0 \(make\): 1.04e\+05 days from the rank's first call"):
        import_traces([xla(tmp_path / "x.json", ce=9e15)])


# Chakra.


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"comm_size": "big"}, "comm_size is 'big', no size"),
        ({"comm_size": -1}, "comm_size -1 is absurd"),
        ({"num_ops": (1 << 62) + 1}, "num_ops 4611686018427387905 is absurd"),
        ({"layer": "first"}, "layer is 'first', no whole number"),
        ({"in_shapes": 7}, "in_shapes is 7, no text"),
        ({"pg_name": (1, 2)}, r"pg_name is \(1, 2\), no name"),
        ({"op_kind": 0, "implied_deps": 3}, "implied_deps is 3, no list of nodes"),
        ({"recorded_ps": 1 << 62}, "node 1 lasts 4611686018427387904 ps, more than a week"),
    ],
)
def test_attributes_of_wrong_types(tmp_path, attributes, message):
    node = ChakraNode(1, "sum", NodeType.COMM_COLL, attributes={"comm_type": 0, "comm_size": 8} | attributes)
    path = tmp_path / "rank.0.et"
    with path.open("wb") as file:
        write_nodes(file, iter([node]))
    with pytest.raises(InputError, match=rf"rank\.0\.et: .*{message}"):
        import_traces([path])


# Logs.


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"num_mbs": 1 << 20}, "2 fwd_start for 1048576 microbatches on 1 chunk"),
        ({"vp_size": 1 << 20}, "2 fwd_start for 2 microbatches on 1048576 chunk"),
    ],
)
def test_a_configuration_beyond_its_logs_is_refused_at_once(tmp_path, config, message):
    with pytest.raises(InputError, match=message):
        import_traces(test_pipeline_log.write(tmp_path, test_pipeline_log.TWO_STAGES, **config))


def test_two_stages_stand_in_for_no_million(tmp_path):
    paths = test_pipeline_log.write(tmp_path, test_pipeline_log.TWO_STAGES, pp_size=1 << 20)
    with pytest.raises(InputError, match=r"config\.json: 2 of 1,048,576 stages have a log: too few"):
        import_traces(paths, skip_bad=True)


def test_an_iteration_that_is_no_object_of_lists(tmp_path):
    (folder,) = test_pipeline_log.write(tmp_path, test_pipeline_log.TWO_STAGES)
    for path in folder.glob("pp_rank_*.json"):
        path.write_text(json.dumps({"5": {"fwd_start": path.name, "bwd_start": 3}}))
    with pytest.raises(InputError, match=r"pp_rank_0\.json: iteration 5: has no list 'fwd_start'"):
        import_traces([folder])
    for path, entry in zip(sorted(folder.glob("pp_rank_*.json")), test_pipeline_log.TWO_STAGES, strict=True):
        path.write_text(json.dumps({"5": entry, "05": entry}))
    with pytest.raises(InputError, match=r"pp_rank_0\.json: an iteration stands twice"):
        import_traces([folder])


def test_a_log_copied_over_anothers_is_refused(tmp_path):
    (folder,) = test_pipeline_log.write(tmp_path, test_pipeline_log.TWO_STAGES)
    (folder / "pp_rank_1.json").write_bytes((folder / "pp_rank_0.json").read_bytes())
    with pytest.raises(InputError, match=r"pp_rank_0\.json and .*pp_rank_1\.json hold the same log"):
        import_traces([folder])
    logs = [write_workers(tmp_path / name, two_by_two()) for name in ("a.csv", "b.csv")]
    with pytest.raises(InputError, match=r"a\.csv and .*b\.csv are each a log of a whole job"):
        import_traces(logs)


@pytest.mark.parametrize(
    ("cell", "column", "message"),
    [
        ("inf", 5, r"row 1: start_ts is inf, no time in seconds"),
        ("1e300", 6, r"row 1: duration is 1e\+300, no time in seconds"),
        ("nan", 2, r"row 1: rank is nan, not a whole number"),
        ("1e300", 3, r"row 1: step is 1e\+300, not a whole number"),
        ("", 0, r"line 2: dp_rank is '', no number"),
        ("0,0", 0, r"line 2: 12 values; the first line names 11 columns"),
        (None, 10, r"line 2: 10 values; the first line names 11 columns"),
        ("\udcff", 4, "line 2, byte 77: no UTF-8 text"),
    ],
)
def test_rows_of_workers_that_are_none(tmp_path, cell, column, message):
    path = write_workers(tmp_path / "log.csv", two_by_two())
    lines = [line.split(",") for line in path.read_text().splitlines()]
    lines[1][column : column + 1] = [] if cell is None else [cell]
    path.write_bytes("\n".join(map(",".join, lines)).encode(errors="surrogateescape"))
    with pytest.raises(InputError, match=rf"log\.csv: {message}"):
        import_traces([path])


def test_parquet_of_workers_is_read_by_column_and_within_limits(tmp_path, monkeypatch):
    import pandas as pd

    path = write_workers(tmp_path / "log.csv", two_by_two())
    table = pd.read_csv(path)
    path.unlink()
    table.to_parquet(tmp_path / "log.parquet")
    assert len(import_traces([tmp_path]).ranks) == 4
    monkeypatch.setenv("SIMCORE_LIMITS", "rows=20")
    with pytest.raises(InputError, match=r"log\.parquet: 24 rows; at most 20 are read"):
        import_traces([tmp_path])
    monkeypatch.delenv("SIMCORE_LIMITS")
    table.astype({"stage": str}).to_parquet(tmp_path / "log.parquet")
    with pytest.raises(InputError, match=r"log\.parquet: column 'stage' holds (large_)?string, no numbers"):
        import_traces([tmp_path])
