"""The timeline of 1,024 ranks of which 32 were simulated: small on disk, any rank on demand."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from simcore.apps.main import app
from simcore.timeline import Timeline
from simcore.timeline.schema import RANK_CLASSES_FILE, TIMELINE_FILE

# PP16 x TP8 x DP8: rank = 64 stage + 8 replica + position.
WORKLOAD = "scale-gpt-175b-pp16-tp8-dp8"
RANK = 64 * 12 + 8 * 1 + 1  # stage 12, replica 1, position 1


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("large") / "run"
    arguments = ["run-sim", WORKLOAD, "--cluster", "h800-1024", "--out", str(folder)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return folder


def test_small_on_disk(run_dir: Path) -> None:
    timeline = Timeline.open(run_dir)
    assert timeline.ranks == range(1024) and timeline.info.num_rank_classes == 32
    assert timeline.num_rows == sum(len(timeline.rank(rank)) for rank in range(0, 1024, 64)) * 2
    assert (run_dir / TIMELINE_FILE).stat().st_size < 2e6
    assert (run_dir / RANK_CLASSES_FILE).stat().st_size < 2e4


def test_any_rank_has_its_own_number_and_peers(run_dir: Path) -> None:
    timeline = Timeline.open(run_dir)
    assert timeline.representative(RANK) == 64 * 12 + 1
    rows, like = timeline.rank(RANK), timeline.rank(64 * 12 + 1)
    assert set(rows["rank"]) == {RANK} and set(rows["stage"]) == {12}
    np.testing.assert_array_equal(rows["end_ps"], like["end_ps"])
    peers = rows[rows["peer"] >= 0]
    assert set(peers["peer"]) == {RANK - 64, RANK + 64}
    towards = peers.groupby(["kind", "phase"], observed=True)["peer"].agg(set).to_dict()
    assert towards == {
        ("recv", "fwd"): {RANK - 64},
        ("send", "fwd"): {RANK + 64},
        ("recv", "bwd"): {RANK + 64},
        ("send", "bwd"): {RANK - 64},
    }


def test_only_links_of_simulated_ranks_are_counted(run_dir: Path) -> None:
    timeline = Timeline.open(run_dir)
    counters = timeline.counters()
    names = set(counters["resource"].cat.categories)
    assert names == set(counters["resource"].unique())
    ports = {name.split(".")[1] for name in names if name.startswith("nvlink.")}
    assert ports == {str(rank) for rank in timeline.classes["representative"].unique()}
    one = timeline.counters(lambda name: name == "nvlink.0.out")
    whole = counters[counters["resource"] == "nvlink.0.out"]
    assert len(one) == len(whole) > 1000
    np.testing.assert_array_equal(one["value"], whole["value"])
    assert timeline.counters(lambda name: False).empty


def test_digest_covers_all_ranks(run_dir: Path) -> None:
    timeline = Timeline.open(run_dir)
    assert timeline.digest() == timeline.info.digest


def test_chosen_ranks_for_perfetto(run_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "two.json.gz"
    result = CliRunner().invoke(
        app, ["report", str(run_dir), "--perfetto", str(target), "--ranks", f"0,{RANK}"]
    )
    assert result.exit_code == 0, result.output
    events = json.loads(gzip.decompress(target.read_bytes()))["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names[0] == "rank 0000: stage 0 (dp 0, pp 0, tp 0)"
    assert names[RANK] == f"rank 0{RANK}: stage 12 (dp 1, pp 12, tp 1)"
    kernels = [event for event in events if event["ph"] == "X" and event["pid"] == RANK]
    assert len(kernels) > 5000
