"""Run folders: what is written, read back, refused, and never left half-done."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from simcore.errors import InputError
from simcore.files import check_folder, whole_folder, write_manifest
from simcore.timeline import RunInfo, Timeline, write_run, write_tables
from simcore.timeline.schema import RUN, TIMELINE
from tests.commands import simcore
from tests.synthetic import FACTS, K, two_stage_graph, two_stage_result, write_two_stage_run


def test_rows_say_what_ran_and_when(two_stage_run: Path) -> None:
    rows = Timeline.open(two_stage_run).rank(0)
    assert list(rows.columns) == TIMELINE.names
    assert rows["op_id"].tolist() == [0, 1, 2, 3, 4, 5]
    assert rows["kind"].tolist() == ["compute", "send", "compute", "recv", "compute", "collective"]
    assert rows["stream"].tolist() == ["compute", "pp", "compute", "pp", "compute", "dp"]
    assert (rows["end_ps"] // K).tolist() == [100, 120, 150, 200, 260, 300]
    # Compute rows: read + written; communication rows: nccl-tests' size.
    assert rows["bytes"].tolist() == [15, 64, 7, 64, 0, 256]
    assert rows["peer"].tolist() == [-1, 1, -1, 1, -1, -1]
    assert rows["algorithm"].tolist() == ["", "p2p", "", "p2p", "", "ring"]
    assert rows["channels"].tolist() == [0, 2, 0, 2, 0, 2]
    assert (rows["alone_ps"] // K).tolist() == [90, 20, 30, 20, 50, 45]


def test_what_is_read_of_a_simulation_is_what_its_files_say(tmp_path: Path) -> None:
    """Rows, classes, counters and the digest; of each column alone, too, as analyses ask for some."""
    with whole_folder(tmp_path / "run", RUN) as folder:
        simulated = write_tables(folder, two_stage_graph(), two_stage_result(), FACTS)
    stored = Timeline.open(tmp_path / "run")
    assert simulated.num_rows == stored.num_rows == 11
    assert simulated.digest() == stored.digest() == stored.info.digest
    assert simulated.info == stored.info
    assert simulated.classes.equals(stored.classes)
    assert simulated.counter_rows().to_pylist() == stored.counter_rows().to_pylist()
    for columns in (None, *([name] for name in TIMELINE.names)):
        one, other = (
            {
                rows.rank: (rows.num_ranks, rows.table.to_pylist())
                for rows in timeline.representatives(columns)
            }
            for timeline in (simulated, stored)
        )
        assert one == other
        assert one.keys() == {0, 1}


def test_layers_are_global(two_stage_run: Path) -> None:
    timeline = Timeline.open(two_stage_run)
    assert timeline.rank(0)["layer"].tolist() == [0, 0, 1, -1, -1, -1]
    # Stage 1 begins with layer 2; its own layer 0 is the model's layer 2.
    assert timeline.rank(1)["layer"].tolist() == [-1, 2, 2, -1, -1]


def test_run_json_holds_facts_and_conventions(two_stage_run: Path) -> None:
    info = RunInfo.read(two_stage_run)
    # fwd and bwd: 4000 + 1000 + 4000 + 8000; recompute 2000 is executed only; attention's bmm halves.
    assert (info.flops.model, info.flops.attention) == (17_000, 1_000)
    assert info.flops.model_causal == 16_500
    assert info.flops.executed == 19_000
    assert [(stage.stage, stage.peak, stage.capacity) for stage in info.memory] == [
        (0, 700, 1000),
        (1, 500, 1000),
    ]
    assert info.warnings == ("from the engine", "written by hand")
    assert info.coordinates(1) == {"pp": 1}
    assert json.loads((two_stage_run / "run.json").read_text())["engine_events"] == 17


def test_counters_and_classes(two_stage_run: Path) -> None:
    timeline = Timeline.open(two_stage_run)
    counters = timeline.counters()
    assert counters["resource"].tolist() == ["nvlink.0.out"] * 2
    assert counters["value"].tolist() == [1e9, 0.0]
    assert timeline.classes["representative"].tolist() == [0, 1]
    assert timeline.ranks == range(2)


def _relaid(run: Path, row_group_size: int) -> None:
    table = pq.read_table(run / "timeline.parquet")
    table = pa.concat_tables([table.slice(6), table.slice(0, 6)])  # rank 1 first
    pq.write_table(table, run / "timeline.parquet", row_group_size=row_group_size)
    write_manifest(run, RUN)


@pytest.mark.parametrize("row_group_size", [1, 4, 11])
def test_digest_does_not_depend_on_the_layout(two_stage_run: Path, row_group_size: int) -> None:
    before = Timeline.open(two_stage_run)
    digest, rank1 = before.digest(), before.rank(1)
    assert digest == before.info.digest
    _relaid(two_stage_run, row_group_size)
    after = Timeline.open(two_stage_run)
    assert after.digest() == digest
    assert after.rank(1)["start_ps"].tolist() == rank1["start_ps"].tolist()
    assert [(rows.rank, rows.table.num_rows) for rows in after.representatives(["end_ps"])] == [
        (1, 5),
        (0, 6),
    ]


def test_digest_sees_one_picosecond(two_stage_run: Path, tmp_path: Path) -> None:
    result = two_stage_result()
    result.times[1].end_ps[4] += 1
    info = write_run(tmp_path / "other", two_stage_graph(), result, FACTS)
    assert info.digest != RunInfo.read(two_stage_run).digest


def test_a_class_gives_its_rows_to_all_its_ranks(two_stage_run: Path) -> None:
    classes = pq.read_table(two_stage_run / "rank_classes.parquet")
    folded = pa.table(
        {
            "rank": pa.array([0, 1, 2], pa.int32()),
            "rank_class": pa.array([0, 1, 1], pa.int32()),
            "representative": pa.array([0, 1, 1], pa.int32()),
        }
    ).cast(classes.schema)
    pq.write_table(folded, two_stage_run / "rank_classes.parquet")
    record = two_stage_run / "run.json"
    record.write_text(record.read_text().replace('"world_size": 2', '"world_size": 3'))
    write_manifest(two_stage_run, RUN)
    timeline = Timeline.open(two_stage_run)
    stood_for = timeline.rank(2, ["rank", "end_ps"])
    assert stood_for["rank"].unique().tolist() == [2]
    assert stood_for["end_ps"].tolist() == timeline.rank(1)["end_ps"].tolist()
    assert {rows.rank: rows.num_ranks for rows in timeline.representatives(["rank"])} == {0: 1, 1: 2}


def test_short_ranks_share_row_groups(two_stage_run: Path) -> None:
    # 11 rows in all: one row group, not one per rank.
    assert pq.ParquetFile(two_stage_run / "timeline.parquet").num_row_groups == 1


@pytest.mark.parametrize("name", ["timeline.parquet", "rank_classes.parquet", "counters.parquet"])
def test_truncated_parquet_is_named(two_stage_run: Path, name: str) -> None:
    path = two_stage_run / name
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match=name):
        Timeline.open(two_stage_run).counters()


def test_damaged_rows_are_named(two_stage_run: Path) -> None:
    path = two_stage_run / "timeline.parquet"
    data = bytearray(path.read_bytes())
    data[4:200] = b"\xff" * 196
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"timeline\.parquet"):
        Timeline.open(two_stage_run).digest()


@pytest.mark.parametrize(
    "name", ["timeline.parquet", "counters.parquet", "rank_classes.parquet", "run.json", "manifest.json"]
)
def test_any_damaged_byte_is_noticed(two_stage_run: Path, name: str) -> None:
    path = two_stage_run / name
    content = path.read_bytes()
    generator = np.random.default_rng(7)
    for place in generator.integers(len(content), size=25):
        bit = generator.integers(8)
        path.write_bytes(content[:place] + bytes([content[place] ^ (1 << bit)]) + content[place + 1 :])
        try:
            Timeline.open(two_stage_run)
        except InputError as error:
            assert str(two_stage_run) in str(error)
        else:  # white space of the manifest, which means nothing
            assert name == "manifest.json" and content[place : place + 1].isspace()


@pytest.mark.parametrize("what", ["half of the rows", "another cell"])
def test_a_table_that_was_written_anew_is_refused(
    two_stage_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    shutil.copytree(two_stage_run, tmp_path / "as_written")
    path = two_stage_run / "timeline.parquet"
    rows = pq.read_table(path)
    if what == "half of the rows":
        rows = rows.slice(0, len(rows) // 2)
    else:
        end = rows.column("end_ps")
        later = pa.array([end[0].as_py() + 1, *end[1:].to_pylist()], end.type)
        rows = rows.set_column(rows.column_names.index("end_ps"), rows.schema.field("end_ps"), later)
    pq.write_table(rows, path)
    told = r"timeline\.parquet: (changed since|[\d,]+ of [\d,]+ bytes)"
    with pytest.raises(InputError, match=told):
        Timeline.open(two_stage_run)
    for words in (("report", two_stage_run), ("compare", tmp_path / "as_written", two_stage_run)):
        assert simcore(*words, "--json") == 2
        assert re.search(told, capsys.readouterr().err)


def test_what_a_killed_writer_left_is_no_run(tmp_path: Path) -> None:
    with whole_folder(tmp_path / "run", RUN) as fresh:
        write_tables(fresh, two_stage_graph(), two_stage_result(), FACTS)
        with pytest.raises(InputError, match=r"never finished"):
            Timeline.open(fresh)
        write_manifest(fresh, RUN)
        with pytest.raises(InputError, match="a writer that was ended left behind"):
            check_folder(fresh, RUN)
    assert Timeline.open(tmp_path / "run").digest()


def test_other_schema_version_is_refused(two_stage_run: Path) -> None:
    path = two_stage_run / "timeline.parquet"
    table = pq.read_table(path).replace_schema_metadata({"simcore.timeline.schema": "0"})
    pq.write_table(table, path)
    write_manifest(two_stage_run, RUN)
    with pytest.raises(InputError, match="schema version '0'"):
        Timeline.open(two_stage_run)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("{}", "versions: Field required"),
    ],
)
def test_bad_run_json_is_refused(two_stage_run: Path, text: str, message: str) -> None:
    (two_stage_run / "run.json").write_text(text)
    write_manifest(two_stage_run, RUN)
    with pytest.raises(InputError, match=message):
        Timeline.open(two_stage_run)


def _with(column: str, values: object) -> Callable[[pa.Table], pa.Table]:
    def changed(table: pa.Table) -> pa.Table:
        place = table.column_names.index(column)
        return table.set_column(place, column, pa.array(values))

    return changed


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("timeline", _with("end_ps", [None] * 11), "column 'end_ps' holds null, expected int64"),
        ("timeline", _with("end_ps", pa.array([None] * 11, pa.int64())), "'end_ps' has 11 empty cells"),
        ("timeline", _with("name", ["gemm"] * 11), "column 'name' holds string, expected dictionary"),
        (
            "timeline",
            _with("peer", pa.array([7] * 11, pa.int32())),
            "'peer' names ranks outside of the job's 2",
        ),
        ("timeline", _with("alone_ps", [-1] * 11), "column 'alone_ps' holds a negative number"),
        ("timeline", _with("end_ps", [0] * 11), "an op ends before it starts"),
        ("timeline", _with("ready_ps", [10**9] * 11), "an op starts before it is ready"),
        ("timeline", lambda table: table.slice(0, 0), "no rows of rank 0"),
        ("timeline", lambda table: table.slice(0, 6), "no rows of rank 1"),
        ("timeline", lambda table: table.append_column("more", [[1] * 11]), "unknown column 'more'"),
        ("rank_classes", lambda table: table.slice(1), "does not name each of the job's 2 ranks once"),
        (
            "rank_classes",
            _with("representative", pa.array([1, 0], pa.int32())),
            "stood for by one that does not stand for itself",
        ),
    ],
)
def test_columns_that_cannot_be_are_refused(
    two_stage_run: Path, file: str, change: Callable[[pa.Table], pa.Table], message: str
) -> None:
    """Even where the manifest agrees, as no program of ours would write it."""
    path = two_stage_run / f"{file}.parquet"
    pq.write_table(change(pq.read_table(path)), path)
    write_manifest(two_stage_run, RUN)
    with pytest.raises(InputError, match=message):
        for rows in (timeline := Timeline.open(two_stage_run)).representatives():
            timeline.rank(rows.rank)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('"step_ps": 300000', '"step_ps": -300000', "step_ps: Input should be greater than 0"),
        ('"step_ps": 300000', '"step_ps": 1e400', "must be a finite number"),
        ('"name": "tiny"', '"num_sms": "many"', "cluster"),
        ('"options": {}', '"options": {"recorded_ranks": [1]}', "recorded_ranks does not name each of 2"),
        (
            '"pp": {\n      "dims": [\n        [\n          2',
            '"pp": {"dims": [[1000000000',
            "'pp' is larger than",
        ),
    ],
)
def test_records_that_cannot_be_are_refused(
    two_stage_run: Path, before: str, after: str, message: str
) -> None:
    record = two_stage_run / "run.json"
    assert before in record.read_text()
    record.write_text(record.read_text().replace(before, after))
    write_manifest(two_stage_run, RUN)
    with pytest.raises(InputError, match=message):
        Timeline.open(two_stage_run)


def test_what_is_not_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a run folder"):
        Timeline.open(tmp_path)
    (tmp_path / "notes.txt").write_text("not a folder at all")
    with pytest.raises(InputError, match="not a run folder"):
        Timeline.open(tmp_path / "notes.txt")


def test_unknown_rank_and_column(two_stage_run: Path) -> None:
    timeline = Timeline.open(two_stage_run)
    with pytest.raises(InputError, match=r"rank 2 is outside the job's 0\.\.1"):
        timeline.rank(2)
    with pytest.raises(InputError, match="no column 'ends_ps'"):
        timeline.rank(0, ["ends_ps"])


def test_a_run_may_be_replaced_but_nothing_else(tmp_path: Path) -> None:
    out_dir = tmp_path / "run"
    write_two_stage_run(out_dir)
    write_two_stage_run(out_dir)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("precious")
    with pytest.raises(InputError, match="not a run folder"):
        write_two_stage_run(tmp_path / "thesis")
    (tmp_path / "file").write_text("precious")
    with pytest.raises(InputError, match="is a file"):
        write_two_stage_run(tmp_path / "file")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "run", "thesis"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, RuntimeError])
def test_nothing_is_left_half_written(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), whole_folder(tmp_path / "run", RUN) as folder:
        (folder / "timeline.parquet").write_bytes(b"half")
        raise error
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_run_keeps_the_previous_one(tmp_path: Path) -> None:
    out_dir = tmp_path / "run"
    digest = write_two_stage_run(out_dir).digest
    broken = replace(two_stage_result(), times=two_stage_result().times[:1])
    with pytest.raises(IndexError):
        write_run(out_dir, two_stage_graph(), broken, FACTS)
    assert Timeline.open(out_dir).digest() == digest
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_text_is_categorical_and_numbers_are_small(two_stage_run: Path) -> None:
    rows = Timeline.open(two_stage_run).rank(0)
    assert rows["name"].dtype == "category"
    assert rows["start_ps"].dtype == np.int64
    assert rows["stage"].dtype == np.int32
