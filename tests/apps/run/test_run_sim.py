"""The command line: what it prints, how it refuses, and that it leaves nothing half-done."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

import simcore.apps.run.aside
import simcore.apps.run.beside
import simcore.apps.run.simulation
import simcore.report.page.run
import simcore.timeline.reader
from simcore.graph import GraphBuilder, MemoryProfile, save_graph
from simcore.timeline import Timeline
from simcore.units import GIB

MS = 10**9


def test_summary_and_files(run: Callable[..., Result], graph_dir: Path) -> None:
    result = run("run-sim", graph_dir)
    assert result.exit_code == 0, result.output
    assert "step time" in result.stdout
    assert "2 of the 96 GPUs of h800-96, node 0; the others stay idle" in " ".join(result.stdout.split())
    assert sorted(path.name for path in Path("runs/latest").iterdir()) == [
        "counters.parquet",
        "manifest.json",
        "memory.parquet",
        "perfetto.json.gz",
        "rank_classes.parquet",
        "report.html",
        "run.json",
        "timeline.parquet",
    ]


def test_json_is_one_object_and_nothing_else(run: Callable[..., Result], graph_dir: Path) -> None:
    result = run("run-sim", graph_dir, "--json", "--out", "mine", "--no-fold", "--seed", "7")
    found = json.loads(result.stdout)
    assert result.exit_code == 0
    # (m + p - 1)(F + B) = 4 x 3 ms, and a little for launches and messages.
    assert found["step_time_s"] == pytest.approx(0.012, rel=0.2)
    assert sum(found["breakdown_s"].values()) == pytest.approx(found["step_time_s"])
    assert found["timeline"] == "mine/timeline.parquet"
    assert Timeline.open("mine").info.seed == 7


def test_same_question_same_answer(run: Callable[..., Result], graph_dir: Path) -> None:
    for name in ("one", "two"):
        assert run("run-sim", graph_dir, "--out", name).exit_code == 0
    assert Timeline.open("one").digest() == Timeline.open("two").digest()


def test_settings_reach_what_they_name(run: Callable[..., Result], graph_dir: Path) -> None:
    settings = {
        "gpu.launch_latency_s": "1ms",
        "workload.fp32_math": "tf32",
        "nccl.max_channels": "1",
        "nccl.buffer_bytes": "1MiB",
        "link.nvlink.0.out.bytes_per_s": "1GB/s",
    }
    pairs = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    assert run("run-sim", graph_dir, "--out", "plain").exit_code == 0
    assert run("run-sim", graph_dir, "--out", "changed", *pairs).exit_code == 0
    plain, changed = Timeline.open("plain"), Timeline.open("changed")
    assert changed.info.settings == settings
    assert changed.info.peak_math == "tf32"
    assert changed.info.step_ps > plain.info.step_ps
    assert changed.rank(0)["channels"].max() == 1
    assert changed.info.profile_hash != plain.info.profile_hash
    assert changed.info.graph_hash == plain.info.graph_hash


def test_packets_take_a_small_job(run: Callable[..., Result], graph_dir: Path) -> None:
    steps = []
    for network in ("fluid", "packet"):
        result = run("run-sim", graph_dir, "--json", "--out", network, "--network", network)
        assert result.exit_code == 0, result.output
        steps.append(json.loads(result.stdout)["step_time_s"])
    assert steps[1] == pytest.approx(steps[0], rel=0.01)
    assert Timeline.open("packet").info.network == "packet"
    limited = run("run-sim", graph_dir, "--network", "packet", "--set", "network.max_events=2")
    assert limited.exit_code == 2
    assert "network.max_events" in limited.output


def test_scenario_file(run: Callable[..., Result], graph_dir: Path) -> None:
    scenario = graph_dir.parent / "scenario.yaml"
    scenario.write_text(
        "workload: tiny\ncluster: h800-8\nnetwork: alphabeta\nseed: 3\nset:\n  nccl.max_channels: 2\n"
    )
    assert run("run-sim", scenario, "--out", "filed", "--seed", "4").exit_code == 0
    info = Timeline.open("filed").info
    assert (info.cluster["num_nodes"], info.network, info.settings) == (
        1,
        "alphabeta",
        {"nccl.max_channels": "2"},
    )
    assert info.seed == 4  # an argument wins over the file


BAD_ARGUMENTS = {
    "unknown workload": (["gpt-nosuch"], "unknown workload 'gpt-nosuch'"),
    "no such folder": (["graphs/nosuch"], "no such graph folder"),
    "folder without a graph": (["."], "not a graph folder"),
    "no such description": (["config.json"], "'config.json': No such file"),
    "unknown cluster": (["GRAPH", "--cluster", "h80-96"], "h800"),
    "cluster too small": (["GRAPH", "--cluster", "v100-1"], "cluster"),
    "unknown network": (["GRAPH", "--network", "fluidd"], "did you mean 'fluid'?"),
    "packets of a fluid network": (["GRAPH", "--set", "network.transport=roce"], "needs --network packet"),
    "unknown transport": (["GRAPH", "--network", "packet", "--set", "network.transport=rocee"], "'roce'"),
    "unknown setting": (["GRAPH", "--set", "workload.kernel=flash"], "did you mean 'workload.kernels'?"),
    "unknown hardware setting": (["GRAPH", "--set", "gpu.hbm_byte=1"], "did you mean 'gpu.hbm_bytes'?"),
    "unknown kernels": (["GRAPH", "--set", "workload.kernels=flsh"], "did you mean 'flash'?"),
    "no workload": ([""], "unknown workload ''"),
    "less memory than is reserved": (["GRAPH", "--set", "gpu.hbm_bytes=99MB"], "must be less than hbm_bytes"),
    "no NCCL version": (["GRAPH", "--set", "cluster.nccl_version=new"], "nccl_version 'new'"),
    "unknown algorithm": (["GRAPH", "--set", "nccl.algorithm=rnig"], "did you mean 'ring'?"),
    "not a pair": (["GRAPH", "--set", "gpu.num_sms"], "expected KEY=VALUE"),
    "negative": (["GRAPH", "--set", "gpu.hbm_bytes_per_s=-1"], "gpu.hbm_bytes_per_s"),
    "not a number": (["GRAPH", "--set", "gpu.hbm_bytes_per_s=nan"], "gpu.hbm_bytes_per_s"),
    "no channels": (["GRAPH", "--set", "nccl.max_channels=0"], "max_channels"),
    "negative seed": (["GRAPH", "--seed", "-1"], "seed"),
    "unknown option": (["GRAPH", "--networks", "fluid"], "No such option"),
    "missing scenario": (["nosuch.yaml"], "cannot read scenario file 'nosuch.yaml'"),
}


@pytest.mark.parametrize("case", BAD_ARGUMENTS)
def test_bad_arguments_are_refused(run: Callable[..., Result], graph_dir: Path, case: str) -> None:
    arguments, message = BAD_ARGUMENTS[case]
    result = run("run-sim", *(str(graph_dir) if a == "GRAPH" else a for a in arguments), "--json")
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.stderr.split())
    assert result.stdout == ""
    assert list(Path.cwd().iterdir()) == []


BAD_SCENARIOS = {
    "unknown key": ("worklod: tiny", "did you mean 'workload'?"),
    "not a mapping": ("- tiny", "expected keys"),
    "not YAML": ("workload: [", "scenario.yaml"),
    "number as name": ("cluster: 3", "cluster must be text"),
    "text as seed": ("seed: many", "seed must be a whole number"),
    "settings as list": ("set: [a, b]", "set must map keys to values"),
    "settings as number": ("set: 0", "set must map keys to values"),
    "setting without a value": ("set: {gpu.name: }", "gpu.name needs a text or a number, not None"),
    "key given twice": ("seed: 1\nseed: 2", "'seed' is given twice"),
    "setting given twice": ("set: {gpu.clock: 1, gpu.clock: 2}", "'gpu.clock' is given twice"),
    "unknown setting": ("workload: tiny\nset: {workload.kernel: flash}", "did you mean 'workload.kernels'?"),
}


@pytest.mark.parametrize("case", BAD_SCENARIOS)
def test_bad_scenarios_are_refused(run: Callable[..., Result], graph_dir: Path, case: str) -> None:
    text, message = BAD_SCENARIOS[case]
    scenario = graph_dir.parent / "scenario.yaml"
    scenario.write_text(text)
    result = run("run-sim", scenario)
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.stderr.split())
    assert list(Path.cwd().iterdir()) == []


def test_a_truncated_graph_is_refused(run: Callable[..., Result], graph_dir: Path) -> None:
    path = graph_dir / "ops.parquet"
    path.write_bytes(path.read_bytes()[:-10])
    result = run("run-sim", graph_dir)
    assert result.exit_code == 2
    assert "ops.parquet" in result.stderr
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.parametrize("name", ["/tmp/../../elsewhere", "../../elsewhere", "..", "", "x" * 300])
def test_a_name_in_a_file_leads_nowhere_but_below_runs(
    run: Callable[..., Result], tmp_path: Path, name: str
) -> None:
    build = GraphBuilder(1, name=name)
    template = build.template("fwd")
    template.compute("gemm", recorded_ps=MS)
    build.program([0], [(template, 0, 0)])
    save_graph(build.build(), tmp_path / "graph")
    result = run("run-sim", tmp_path / "graph")
    assert result.exit_code == 0, result.output
    (folder,) = (path for path in Path("runs").iterdir() if not path.is_symlink())
    assert Timeline.open(folder).num_rows == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["graph", "work"]
    assert not Path("/elsewhere").exists()


def test_a_folder_with_a_file_of_that_name_is_not_ours(run: Callable[..., Result], graph_dir: Path) -> None:
    Path("p").mkdir()
    Path("p/run.json").write_text("{}")
    Path("p/thesis.txt").write_text("years")
    result = run("run-sim", graph_dir, "--out", "p")
    assert result.exit_code == 2
    assert "no manifest.json names 'run.json' and 1 more as ours" in " ".join(result.stderr.split())
    assert Path("p/thesis.txt").read_text() == "years" and Path("p/run.json").read_text() == "{}"


def test_dims_must_multiply_to_the_ranks(run: Callable[..., Result], tmp_path: Path) -> None:
    build = GraphBuilder(2, name="odd", dims={"tp": 2, "dp": 2})
    template = build.template("fwd")
    template.compute("gemm", recorded_ps=MS)
    build.program([0, 1], [(template, 0, 0)])
    save_graph(build.build(), tmp_path / "odd")
    result = run("run-sim", tmp_path / "odd")
    assert result.exit_code == 2
    assert "dp 2 x tp 2 = 4, but it has 2 ranks" in result.stderr


def test_members_of_a_group_must_agree(run: Callable[..., Result], tmp_path: Path) -> None:
    build = GraphBuilder(2, name="torn", dims={"tp": 2})
    build.group("tp", dims=((2, 1),))
    for rank, num_bytes in ((0, 1024), (1, 2048)):
        template = build.template("fwd")
        template.collective("all_reduce", "tp", num_bytes)
        build.program([rank], [(template, 0, 0)])
    save_graph(build.build(), tmp_path / "torn")
    result = run("run-sim", tmp_path / "torn")
    assert result.exit_code == 2
    assert "1024" in result.stderr
    assert "2048" in result.stderr
    assert list(Path.cwd().iterdir()) == []


def test_out_of_memory_is_infeasible(run: Callable[..., Result], tmp_path: Path) -> None:
    build = GraphBuilder(1, name="huge", dims={"tp": 1})
    template = build.template("fwd")
    template.compute("gemm", recorded_ps=MS)
    build.program([0], [(template, 0, 0)], memory=MemoryProfile(parameters=100 * GIB, peak=100 * GIB))
    save_graph(build.build(), tmp_path / "huge")
    result = run("run-sim", tmp_path / "huge", "--json")
    assert result.exit_code == 3
    assert "stage 0" in result.stderr
    assert "100.00 GiB" in result.stderr
    assert result.stdout == ""
    assert list(Path.cwd().iterdir()) == []


def test_what_is_not_a_run_is_never_overwritten(run: Callable[..., Result], graph_dir: Path) -> None:
    Path("thesis").mkdir()
    Path("thesis/chapter.txt").write_text("precious")
    result = run("run-sim", graph_dir, "--out", "thesis")
    assert result.exit_code == 2
    assert "not a run folder" in result.stderr
    assert [path.name for path in Path("thesis").iterdir()] == ["chapter.txt"]


def _interrupt(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def _terminate(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def _break(*_: Any, **__: Any) -> None:
    raise RuntimeError("a bug")


@pytest.mark.parametrize("where", ["run", "store", "analyse", "write_perfetto"])
@pytest.mark.parametrize(("what", "code"), [(_interrupt, 130), (_terminate, 143), (_break, 1)])
def test_an_abrupt_end_leaves_no_folder(
    run: Callable[..., Result],
    graph_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    what: Callable[..., None],
    code: int,
) -> None:
    module = simcore.apps.run.simulation if where in ("run", "analyse") else simcore.apps.run.beside
    monkeypatch.setattr(module, where, what)
    if what is not _break:  # who interrupts means this process, not a fork of it
        monkeypatch.setattr(simcore.apps.run.aside, "_may_fork", lambda: False)
    result = run("run-sim", graph_dir, "--out", "ended")
    assert result.exit_code == code
    assert list(Path.cwd().iterdir()) == []
    if code == 1:
        assert "please report it" in result.stderr


@pytest.mark.parametrize("forked", [True, False])
def test_the_page_of_a_large_run_is_that_of_any_other(
    run: Callable[..., Result], graph_dir: Path, monkeypatch: pytest.MonkeyPatch, *, forked: bool
) -> None:
    assert run("run-sim", graph_dir, "--out", "small").exit_code == 0
    monkeypatch.setattr(simcore.timeline.reader, "_FEW_ROWS", 0)
    monkeypatch.setattr(simcore.report.page.run, "critical_path", _break)  # it is found beside the analysis
    if not forked:
        monkeypatch.setattr(simcore.apps.run.aside, "_may_fork", lambda: False)
    result = run("run-sim", graph_dir, "--out", "large")
    assert result.exit_code == 0, result.output
    small, large = (Path(name, "report.html").read_text(encoding="utf-8") for name in ("small", "large"))
    assert large == small


def test_report_of_a_run(run: Callable[..., Result], graph_dir: Path) -> None:
    simulated = json.loads(run("run-sim", graph_dir, "--out", "done", "--json").stdout)
    result = run("report", "done", "--perfetto", "two.json.gz", "--ranks", "0-1", "--top", "3")
    assert result.exit_code == 0, result.output
    assert "ranks: 2" in result.stdout
    assert Path("two.json.gz").stat().st_size > 0
    path = run("report", "done", "--critical-path")
    assert "on the critical path" in path.stdout
    assert "critical path in stage" in path.stdout
    again = json.loads(run("report", "done", "--json").stdout)
    assert {**again, "wall_s": 0} == {**simulated, "wall_s": 0}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nosuch"], "not a run folder: there is none"),
        (["./donne"], "there is none; did you mean 'done'?"),
        (["done", "--ranks", "0,x"], "expected numbers and ranges"),
        (["done", "--ranks", "9", "--perfetto", "p.json.gz"], "rank 9"),
    ],
)
def test_report_refuses(
    run: Callable[..., Result], two_stage_run: Path, arguments: list[str], message: str
) -> None:
    two_stage_run.rename("done")
    result = run("report", *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert [path.name for path in Path.cwd().iterdir()] == ["done"]


def test_report_names_a_truncated_file(run: Callable[..., Result], two_stage_run: Path) -> None:
    path = two_stage_run / "timeline.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    result = run("report", two_stage_run)
    assert result.exit_code == 2
    assert "timeline.parquet" in " ".join(result.stderr.split())


def test_data_that_no_wait_orders_is_a_warning(run: Callable[..., Result], tmp_path: Path) -> None:
    build = GraphBuilder(1, name="races", dims={"tp": 1})
    template = build.template("fwd")
    write = template.compute("write", recorded_ps=MS)
    template.compute("read", recorded_ps=MS, stream="side", data=[write])
    build.program([0], [(template, 0, 0)])
    save_graph(build.build(), tmp_path / "races")
    result = run("run-sim", tmp_path / "races", "--json")
    assert result.exit_code == 0, result.output
    assert "no wait orders them" in json.loads(result.stdout)["warnings"][0]


def test_a_fabric_that_nobody_measured_is_a_warning(run: Callable[..., Result], tmp_path: Path) -> None:
    build = GraphBuilder(16, name="wide", dims={"dp": 16})
    build.group("dp", ((16, 1),))
    template = build.template("step")
    template.collective("all_reduce", "dp", 1 << 20, waits=(template.compute("gemm", recorded_ps=MS),))
    build.program(range(16), [(template, 0, 0)])
    save_graph(build.build(), tmp_path / "wide")

    def warned(*settings: str) -> list[str]:
        result = run("run-sim", tmp_path / "wide", "--json", *settings)
        assert result.exit_code == 0, result.output
        return [line for line in json.loads(result.stdout)["warnings"] if "the fabric of cluster" in line]

    assert warned("--cluster", "h100-16") == warned("--cluster", "h100-tcpxo-16") == []
    (said,) = warned("--cluster", "h100-tcpx-16")
    assert "(tcpx, 4 x 200 Gb/s per node) was never measured" in said and "nic_latency_s: assumption" in said
    (said,) = warned("--cluster", "h100-16", "--set", "cluster.nic_bytes_per_s=25GB/s")
    assert "not measured with another nic_bytes_per_s" in said


@pytest.mark.parametrize(
    "ranks", ["0-99999999", "0-999999999999999999999", "7-0", "0-1048577", "\uff19", "0,,1"]
)
def test_absurd_ranks_are_refused_at_once(
    run: Callable[..., Result], graph_dir: Path, tmp_path: Path, ranks: str
) -> None:
    run("run-sim", graph_dir, "--out", tmp_path / "run", "--json")
    result = run("report", tmp_path / "run", "--perfetto", tmp_path / "p.json.gz", "--ranks", ranks)
    assert result.exit_code == 2
    assert "such as 0,8,16-19" in result.stderr
    assert not (tmp_path / "p.json.gz").exists()


@pytest.mark.parametrize(
    "said", ["cluster: ../c.toml", "workload: /dev/zero", "set: {cluster.node_xml: /dev/zero}"]
)
def test_a_scenario_names_files_of_its_own_folder(
    run: Callable[..., Result], tmp_path: Path, said: str
) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "s.yaml").write_text(said)
    result = run("run-sim", tmp_path / "job" / "s.yaml", "--json")
    assert result.exit_code == 2
    assert "a file may name files of its own folder only" in " ".join(result.stderr.split())
