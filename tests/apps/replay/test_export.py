"""Replays as run folders and as profiler traces; times in us."""

import gzip
import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simcore.analysis import analyse
from simcore.apps.main import app
from simcore.apps.replay.play import play
from simcore.errors import InputError
from simcore.report import write_kineto
from simcore.timeline import Timeline
from tests.imports.traces import launched, step, write
from tests.synthetic import two_stage_run
from workloads.imports import import_traces

__all__ = ["two_stage_run"]


def run(*arguments):
    found = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert found.exit_code == 0, found.output
    return found.stdout


def events_of(path):
    return json.loads(gzip.decompress(path.read_bytes()))


def two_steps(path, rank=3):
    events = [
        step(7, 0, 100), step(8, 100, 100),
        *launched("a", 2, 10, 20, corr=1),
        *launched("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 4, 25, 40, corr=2, stream=20),
        *launched("Memcpy HtoD (Pinned -> Device)", 6, 65, 5, corr=3, cat="gpu_memcpy", bytes=400),
        *launched("Memset (Device)", 8, 70, 1, corr=4, cat="gpu_memset"),
        *launched("b", 120, 130, 30, corr=5),
    ]  # fmt: skip
    return write(path, events, distributedInfo={"rank": rank, "world_size": 8})


def test_a_replay_goes_out_and_comes_back(tmp_path):
    recorded = two_steps(tmp_path / "t.json")
    text = run("replay", recorded, "--out", tmp_path / "run", "--kineto", tmp_path / "x.json.gz", "--json")
    told = json.loads(text)
    again = play(import_traces([tmp_path / "x.json.gz"])).steps()
    assert [(row.rank, row.step) for row in again] == [(3, 7), (3, 8)]
    for row, first in zip(again, told["steps"], strict=True):
        assert row.recorded.span == pytest.approx(first["predicted_s"], abs=1e-12)
        assert row.recorded.parts() == pytest.approx(first["breakdown_s"], abs=1e-12)
    assert {"kernel_time_s", "critical_path_s", "host_bound_share", "sm_utilisation"} <= set(told["steps"][0])
    assert "contributions" not in told["steps"][0]
    timeline = Timeline.open(tmp_path / "run")
    assert timeline.info.settings == {"gaps": "recorded", "level": "recorded"}
    assert timeline.info.step_ps == 160_000_000 - 2_000_000  # from the first launch to the end of b
    assert analyse(timeline).num_ranks == 1
    assert (tmp_path / "run" / "perfetto.json.gz").is_file()
    assert "step time" in run("report", tmp_path / "run", "--critical-path")
    assert json.loads(run("compare", tmp_path / "run", tmp_path / "run", "--json"))["path"] == []


def test_explanations_and_series(tmp_path):
    # b starts 30 after a for no recorded reason, once: no typical gap, so the first step is 3% shorter.
    events = [
        step(7, 0, 1000), step(8, 1000, 1000),
        *launched("a", 2, 10, 400, corr=1), *launched("b", 4, 440, 560, corr=2),
        *launched("c", 1100, 1108, 300, corr=3),
    ]  # fmt: skip
    recorded = write(tmp_path / "t.json", events)
    shown = json.loads(run("replay", recorded, "--gaps", "typical", "--explain", "--sm-series", "--json"))
    for row in shown["steps"]:
        parts = [c["work_difference_s"] + c["wait_difference_s"] for c in row["contributions"]]
        assert sum(parts) == pytest.approx(row["predicted_s"] - row["recorded_s"], abs=1e-12)
    table = run("replay", recorded, "--gaps", "typical", "--explain", "--step", 7)
    assert "by op on the critical path" in table
    bad = CliRunner().invoke(app, ["replay", str(recorded), "--kineto", str(tmp_path / "x.json.gz")])
    assert (bad.exit_code, "--out" in bad.output) == (2, True)


def test_the_schema_of_a_profiler_trace(two_stage_run: Path, tmp_path: Path) -> None:
    timeline = Timeline.open(two_stage_run)
    files = write_kineto(timeline, tmp_path / "x.json.gz", [0, 1])
    assert [file.name for file in files] == ["x.rank0.json.gz", "x.rank1.json.gz"]
    trace = events_of(files[0])
    assert trace["schemaVersion"] == 1
    assert trace["distributedInfo"] == {"backend": "nccl", "rank": 0, "world_size": 2}
    assert trace["deviceProperties"][0]["name"] == "tiny"
    events = trace["traceEvents"]
    assert Counter(event["ph"] for event in events) == {"M": 4, "X": 14, "s": 6, "f": 6}
    spans = [event for event in events if event["ph"] == "X"]
    assert [event["name"] for event in spans if event["cat"] == "user_annotation"] == ["ProfilerStep#0"]
    # One backward is launched, between exchanges: one event of the autograd engine around it.
    (backward,) = (e for e in spans if e["cat"] == "cpu_op")
    assert backward["name"].startswith("autograd::engine::evaluate_function")
    launches = {e["args"]["correlation"]: e for e in spans if e["cat"] == "cuda_runtime"}
    kernels = {e["args"]["correlation"]: e for e in spans if e["cat"] == "kernel"}
    assert set(launches) == set(kernels)
    for number, found in kernels.items():
        assert launches[number]["ts"] <= found["ts"]
        assert found["tid"] == found["args"]["stream"]
        assert found["pid"] == found["args"]["device"]
    # Each kernel of a stream begins when the one before has ended.
    for stream in {found["tid"] for found in kernels.values()}:
        row = sorted((f["ts"], f["ts"] + f["dur"]) for f in kernels.values() if f["tid"] == stream)
        assert all(one[1] <= two[0] + 1e-9 for one, two in pairwise(row))


def test_nccl_metadata(two_stage_run: Path, tmp_path: Path) -> None:
    timeline = Timeline.open(two_stage_run)
    (file,) = write_kineto(timeline, tmp_path / "x.json.gz", [0])
    found = {e["name"]: e for e in events_of(file)["traceEvents"] if e.get("cat") == "kernel"}
    reduced = found["ncclDevKernel_AllReduce_RING_SIMPLE"]
    # Placed at 240 ns, its peer came at 250: as in a profiler's trace the wait belongs to it.
    assert (reduced["ts"], reduced["dur"]) == (0.240, 0.060)
    args = reduced["args"]
    assert (args["Collective name"], args["dtype"], args["Group size"]) == ("allreduce", "Byte", 2)
    assert (args["Process Group Name"], args["Process Group Ranks"]) == ("dp", "[0, 1]")
    sends = [e for e in events_of(file)["traceEvents"] if e.get("args", {}).get("Collective name") == "send"]
    assert [event["args"]["Dst Rank"] for event in sends] == [1]
    with pytest.raises(InputError, match="rank 2 is outside"):
        write_kineto(timeline, tmp_path / "x.json.gz", [2])


def test_exported_ranks_meet_again(two_stage_run: Path, tmp_path: Path) -> None:
    files = write_kineto(Timeline.open(two_stage_run), tmp_path / "x.json.gz", [0, 1])
    job = import_traces(files)
    # A send and its receive each way, and the reduction: nothing stands for itself.
    assert job.report.lone_collectives == 0
    assert job.report.coupled_collectives == 3
    for row in play(job).steps():
        assert row.replayed.span == pytest.approx(row.recorded.span, abs=1e-12)


def test_report_writes_profiler_traces(two_stage_run: Path, tmp_path: Path) -> None:
    shown = run("report", two_stage_run, "--kineto", tmp_path / "x.json.gz", "--ranks", "1")
    assert "x.json.gz" in shown
    rows = play(import_traces([tmp_path / "x.json.gz"])).steps()
    assert [row.rank for row in rows] == [1]
    assert rows[0].recorded.span == pytest.approx(300e-9)  # its recv is posted at once
