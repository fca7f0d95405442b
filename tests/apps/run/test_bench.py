"""The scale benchmark: its graphs, its table, its JSON object, and the sizes it refuses."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simcore.apps.bench.command import app
from simcore.apps.bench.published import FOLDER
from simcore.apps.bench.scale import chosen_sizes, echo_beside, growth_exponent, scale_workloads
from simcore.apps.run.scenario import resolve_scenario
from simcore.errors import InputError
from simcore.graph import verify
from workloads import catalog

ROOT = Path(__file__).parents[3]
SIZES = {
    96: ("scale-gpt-175b-pp12-tp8-dp1", {"tp": 8, "pp": 12, "dp": 1}),
    1024: ("scale-gpt-175b-pp16-tp8-dp8", {"tp": 8, "pp": 16, "dp": 8}),
    8192: ("scale-gpt-175b-pp16-tp8-dp64", {"tp": 8, "pp": 16, "dp": 64}),
    131_072: ("scale-gpt-175b-pp16-tp8-dp1024", {"tp": 8, "pp": 16, "dp": 1024}),
}


def test_one_graph_per_size() -> None:
    assert scale_workloads() == {gpus: name for gpus, (name, _) in SIZES.items()}


@pytest.mark.parametrize("gpus", SIZES)
def test_graphs_do_not_grow_with_the_world(gpus: int) -> None:
    name, dims = SIZES[gpus]
    assert sum(file.stat().st_size for file in catalog.path(name).iterdir()) <= 200_000
    graph = catalog.load(name)
    assert verify(graph) == []
    assert graph.world_size == gpus and graph.workload.dims == dims and graph.workload.name == name
    assert graph.workload.command.startswith("python scripts/trace_workload.py megatron-gpt --layers 96 ")
    assert graph.workload.command.endswith("--overlap-grad-reduce")
    # Per stage the first tensor-parallel rank, and the others: they leave replicated parameters out of the
    # gradient norm.
    assert len(graph.programs) == 2 * dims["pp"]
    assert sum(program.num_ranks for program in graph.programs) == gpus
    assert all(len(program.ranks) <= 3 for program in graph.programs)


def test_scale_prints_a_row_per_size() -> None:
    result = CliRunner().invoke(app, ["scale", "--gpus", "96", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    (row,) = found["rows"]
    assert row["gpus"] == 96 and found["folded"] and found["growth_exponent"] is None
    # One class per program: tensor-parallel ranks 1 to 7 of a stage are alike, replicas there are none.
    assert row["rank_classes"] == 24
    assert 0 < row["engine_events"] < row["kernels"]
    assert row["events_per_kernel"] == row["engine_events"] / row["kernels"]
    assert row["cpu_s"] > 0 and sum(row["parts_s"].values()) < row["wall_s"]
    assert 50 * 2**20 < row["peak_rss_bytes"] < 3 * 2**30
    assert 0 < row["timeline_bytes"] < row["run_bytes"]
    assert 5.0 < row["step_time_s"] < 50.0


def test_a_described_job_is_measured_whole() -> None:
    result = CliRunner().invoke(app, ["described", "moe", "--repeat", "1", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    row = found["rows"]["moe"]
    assert row["gpus"] == 1024 and 0.1 < row["step_time_s"] < 10.0
    assert set(row["run_bytes"]) == {
        "counters.parquet", "manifest.json", "memory.parquet", "perfetto.json.gz", "rank_classes.parquet",
        "report.html", "run.json", "timeline.parquet",
    }  # fmt: skip
    # The parts are all of the wall time; a process that only imports is quicker than one that also runs.
    assert sum(row["parts_s"].values()) == pytest.approx(row["wall_s"])
    assert min(row["parts_s"].values()) > 0 and 0 < found["start_s"]["cpu_s"] < row["cpu_s"]
    assert row["peak_rss_bytes"] > 50 * 2**20


def test_unknown_jobs_are_refused_with_the_nearest() -> None:
    result = CliRunner().invoke(app, ["described", "pp8-interlaved"])
    assert result.exit_code == 2 and result.stdout == ""
    assert "unknown job 'pp8-interlaved'; did you mean 'pp8-interleaved'" in result.stderr


def test_unknown_sizes_are_refused_with_those_there_are() -> None:
    result = CliRunner().invoke(app, ["scale", "--gpus", "1000"])
    assert result.exit_code == 2 and result.stdout == ""
    assert "no graph of a job on 1,000 GPUs" in result.stderr
    assert "96, 1,024, 8,192, 131,072" in result.stderr


def test_sizes_to_measure() -> None:
    known = {96: "a", 1024: "b", 8192: "c"}
    assert chosen_sizes([], known, fold=True) == [96, 1024, 8192]
    assert chosen_sizes([], known, fold=False) == [96, 1024]  # the larger ones take minutes: on request
    assert chosen_sizes([8192, 96, 96], known, fold=False) == [96, 8192]
    with pytest.raises(InputError):
        chosen_sizes([96, 97], known, fold=True)


def test_growth_exponent() -> None:
    # wall = 2 gpus^0.5; then points off the line: slopes 0 and 1 over equal steps make 0.5 by least squares.
    rows = [{"gpus": gpus, "wall_s": 2 * gpus**0.5, "cpu_s": 3.0} for gpus in (4, 16, 256)]
    assert growth_exponent(rows) == pytest.approx(0.5)
    assert growth_exponent(rows, "cpu_s") == pytest.approx(0.0)
    bent = [{"gpus": gpus, "wall_s": wall} for gpus, wall in ((1, 1.0), (10, 1.0), (100, 10.0))]
    assert growth_exponent(bent) == pytest.approx(0.5)
    assert growth_exponent(rows[:1]) is None and growth_exponent([]) is None


def test_echo_beside() -> None:
    assert echo_beside(8) is None
    assert echo_beside(96) == (64, 42.4)
    assert echo_beside(8192) == (8192, 4976.9)
    assert echo_beside(131_072) == (8192, 4976.9)


def test_predictions_of_published_runs_are_timed(tmp_path: Path) -> None:
    row = {
        "id": "r1", "family": "f", "model": "GPT-3 tiny", "layers": "4", "hidden": "1024", "heads": "16",
        "kv_heads": "16", "ffn": "4096", "vocab": "51200", "seq": "1024", "gpus": "16", "gpu_type": "H100",
        "tp": "2", "pp": "2", "vpp": "1", "global_batch": "64", "micro_batch": "2", "precision": "bf16",
        "recompute": "none", "metric": "step_time_s", "value": "0.5", "quality": "A", "sp": "yes",
    }  # fmt: skip
    rows = [row, {**row, "id": "r2", "layers": "8"}, {**row, "id": "r3"}]  # the third is the first again
    table = tmp_path / "runs.csv"
    table.write_text("\n".join([",".join(row), *(",".join(one.values()) for one in rows)]) + "\n")

    def timed(*options: str) -> dict[str, Any]:
        done = CliRunner().invoke(app, ["runs", str(table), "--json", *options])
        assert done.exit_code == 0
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    every, half = timed("--every", "1"), timed("--every", "2")
    assert (every["cases"], every["of"], half["cases"], every["refused"]) == (2, 2, 1, 0)
    assert every["slowest"][0]["cpu_s"] <= every["cpu_s"]
    assert timed("--every", "1")["digest"] == every["digest"] != half["digest"]
    assert CliRunner().invoke(app, ["runs", str(table), "--every", "0"]).exit_code == 2


def test_published_jobs_are_described_whole_and_timed_to_the_last_file() -> None:
    files = sorted(FOLDER.glob("*.yaml"))
    assert len(files) == 33  # one for each family of published runs
    for file in files:
        job = resolve_scenario(str(file), cluster=None, settings={}).described
        assert job is not None and file.read_text().startswith("# ")  # its source
    # In a process of its own: what a parent holds when it forks counts as its children's memory.
    asked = [
        sys.executable,
        ROOT / "scripts" / "bench.py",
        "published",
        "fms_fsdp",
        "--no-perfetto",
        "--json",
    ]
    found = json.loads(subprocess.run(asked, capture_output=True, check=True).stdout)
    row = found["rows"]["fms_fsdp"]
    assert (
        row["gpus"] == 128
        and row["parts_s"]["Perfetto"] == 0.0
        and "perfetto.json.gz" not in row["run_bytes"]
    )
    assert found["median_cpu_s"] == found["worst_cpu_s"] == row["cpu_s"] > 0.0
    assert 50e6 < row["peak_rss_bytes"] == found["most_peak_rss_bytes"] < 500e6


def test_published_refuses_other_families() -> None:
    result = CliRunner().invoke(app, ["published", "fms_fdsp"])
    assert result.exit_code == 2 and "fms_fsdp" in result.output


def test_a_candidate_costs_what_describing_and_simulating_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simcore.apps.bench.answers._STRATEGIES", ((8, 2, 1),))
    result = CliRunner().invoke(app, ["candidates", "--repeat", "1", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    (row,) = found["rows"]
    assert row["rank_classes"] == 2 and row["engine_events"] > 0  # one for each stage
    assert 0 < row["describe_s"] < row["cpu_s"] == found["median_cpu_s"] == found["worst_cpu_s"]


def test_a_curve_has_the_exponent_of_its_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simcore.apps.bench.answers._AXES", {"microbatches": (8, 16)})
    result = CliRunner().invoke(app, ["curve", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    few, many = found["rows"]["microbatches"]
    assert found["exponents"]["microbatches"]["engine_events"] == pytest.approx(
        math.log(many["engine_events"] / few["engine_events"]) / math.log(2)
    )
