"""``run_sim.py --memory-only``: a verdict with a margin, and what would fit instead."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from simcore.apps.run.fitting import memory_answer, played, verdict_of
from simcore.apps.run.scenario import resolve_scenario
from simcore.graph import GraphBuilder, save_graph
from workloads.jobs import complete

Run = Callable[..., Result]

TINY = (
    "llama3-8b", "--cluster", "h100-8", "--memory-only", "--set", "model.layers=2", "--set", "parallel.tp=2",
    "--set", "training.seq=1024", "--set", "training.global_batch=8",
)  # fmt: skip


def test_what_fits_says_its_room_and_the_largest_tensors(run: Run) -> None:
    result = run("run-sim", *TINY)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("fits on every stage, least room ")
    assert "(stage 0) +-" in lines[0]
    assert lines[1].startswith("llama3-8b on 8 GPUs (H100-SXM5-80GB) of cluster h100-8")
    assert any("* assumed; what matters most: --set parallel.pp=1," in line for line in lines)
    assert not any("--set training.seq" in line for line in lines)  # it was said
    assert sum(" MiB  " in line for line in lines) == 20
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    "job",
    [
        ("llama3-70b", {"tp": 8, "pp": 4}), ("gpt3-175b", {"tp": 8, "pp": 8}),
        ("gpt3-175b", {"tp": 8, "pp": 4, "virtual_stages": 2}), ("mixtral-8x7b", {"tp": 8, "pp": 4}),
    ],
)  # fmt: skip
def test_stages_that_cannot_be_the_fullest_are_not_played(job: tuple[str, dict[str, int]]) -> None:
    name, parallel = job
    made = complete({"model": name, "parallel": parallel}, "", num_gpus=64, generation="hopper")
    some, every = played(made), played(made, near=0.0, full=0.0)
    assert 0 < len(some) < len(every)
    assert verdict_of(70 << 30, some) == verdict_of(70 << 30, every)


def test_equal_stages_beside_each_other_are_one_row() -> None:
    said = {"software.preset": "megatron-core"}  # of which 16 stages fit, with equal layers
    lines, answer = memory_answer(resolve_scenario("deepseek-v3", cluster="h800-2048", settings=said))
    played = answer["stages"]
    peaks = {(one["allocated_bytes"], one["reserved_bytes"], one["instant"]) for one in played}
    assert (len(peaks), len(played)) == (1, 12)
    (row,) = (line for line in lines if line.endswith(played[0]["instant"]))
    assert row.split()[0] == f"{played[0]['stage']}-{played[-1]['stage']}"


def test_a_model_of_340_billion_fits_with_the_states_that_its_recipe_keeps(run: Run) -> None:
    # Ran on 128 H100 (NVIDIA/dgxc-benchmarking, nemotron); with fp32 states 8 bytes a parameter more, of 5.5
    # billion over two replicas: 20.5 GiB.
    said = {
        "parallel": {"tp": 8, "pp": 8, "virtual_stages": 12},
        "training": {"micro_batch": 1, "recompute": "selective", "global_batch": 32},
    }
    words = [f"--set={room}.{key}={value}" for room, keys in said.items() for key, value in keys.items()]
    job = "nemotron4-340b", "--cluster", "h100-128", "--memory-only", "--json", *words
    ran = json.loads(run("run-sim", *job, "--set", "software.preset=nemo-dgxc-340b").stdout)
    # Asked in Python, as nobody needs to know what would fit.
    wide = {"model": "nemotron4-340b", "software": {"preset": "nemo-dgxc-flash"}, **said}
    made = complete(wide, "", num_gpus=128, generation="hopper")
    verdict = verdict_of(ran["available_bytes"], played(made))
    assert (ran["verdict"], verdict.word) == ("fits", "does not fit")


def test_the_object_has_both_peaks_and_conserves_what_is_held(run: Run) -> None:
    found = json.loads(run("run-sim", *TINY, "--json").stdout)
    assert found["verdict"] == "fits"
    (stage,) = found["stages"]
    assert stage["reserved_bytes"] == found["needs_bytes"] >= stage["allocated_bytes"]
    assert found["room_bytes"] == found["available_bytes"] - found["needs_bytes"]
    # What is held at the peak is what is allocated, in blocks that are less than 1 MiB larger than asked for.
    held = sum(stage["by_category"].values())
    assert 0.98 * stage["allocated_bytes"] <= held <= stage["allocated_bytes"]


def test_expandable_segments_reserve_no_less_than_is_allocated_and_no_more_than_without(run: Run) -> None:
    plain = json.loads(run("run-sim", *TINY, "--json").stdout)["stages"][0]
    setting = ("--set", "software.allocator=expandable_segments:True")
    found = json.loads(run("run-sim", *TINY, *setting, "--json").stdout)["stages"][0]
    assert found["allocated_bytes"] <= found["reserved_bytes"] <= plain["reserved_bytes"]


def test_what_does_not_fit_names_the_instant_and_what_would_with_its_cost(run: Run) -> None:
    tight = ("--set", "gpu.hbm_bytes=6GiB", "--set", "gpu.reserved_bytes=1GiB")
    result = run("run-sim", *TINY, *tight)
    assert result.exit_code == 0, result.output
    text = " ".join(result.stdout.split())
    assert text.startswith("does not fit: stage 0, ")
    assert "GiB over" in text and ", at microbatch 0's " in text
    costs = [float(part.split("% time")[0].split("(")[-1]) for part in text.split("would fit: ")[1:]]
    assert costs == sorted(costs)


def test_settings_that_pytorch_refuses_are_refused(run: Run) -> None:
    result = run("run-sim", *TINY, "--set", "software.allocator=expandable_segment:True")
    assert result.exit_code == 2
    assert "did you mean 'expandable_segments'?" in result.stderr


def test_pytorchs_memory_viewer_reads_the_snapshot(run: Run, tmp_path: Path) -> None:
    viewer = pytest.importorskip("torch.cuda._memory_viz")
    path = tmp_path / "snapshot.pickle"
    found = json.loads(run("run-sim", *TINY, "--json", "--memory-snapshot", path).stdout)
    snapshot = pickle.loads(path.read_bytes())
    assert viewer.trace_plot(snapshot)
    segments = snapshot["segments"]
    assert sum(one["total_size"] for one in segments) == found["stages"][0]["reserved_bytes"]
    for one in segments:
        assert sum(block["size"] for block in one["blocks"]) == one["total_size"]
    # The history ends with what the segments hold: all that was allocated less all that was freed.
    (trace,) = snapshot["device_traces"]
    sizes: dict[int, int] = {}
    most = 0
    for entry in trace:
        if entry["action"] == "alloc":
            sizes[entry["addr"]] = -(-entry["size"] // 512) * 512
            most = max(most, sum(sizes.values())) if entry["time_us"] % 50 == 0 else most
        elif entry["action"] == "free_completed":
            del sizes[entry["addr"]]
    live = {b["address"] for one in segments for b in one["blocks"] if b["state"] == "active_allocated"}
    assert sizes.keys() == live
    assert most <= found["stages"][0]["allocated_bytes"]
    assert "TOTAL MEM" in viewer.trace(snapshot)
    assert f"segments: {len(segments)}" in viewer.segsum(snapshot)


def test_a_picture_shows_what_stages_hold(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "held.png"
    assert run("run-sim", *TINY, "--set", "parallel.pp=2", "--memory-picture", path).exit_code == 0
    assert path.stat().st_size > 10_000


def test_files_belong_to_memory_only(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    without = [word for word in TINY if word != "--memory-only"]
    assert "belong to --memory-only" in run("run-sim", *without, "--memory-snapshot", path).stderr
    described = run("run-sim", *TINY, "--set", "memory.allocator=expandable_segments:True")
    assert described.exit_code == 2
    assert "a described job has software.allocator" in described.stderr


def test_a_traced_program_is_played_with_the_kernels_of_its_build(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    found = json.loads(run("run-sim", "--memory-only", "--memory-snapshot", path, "--json").stdout)
    first = found["stages"][0]
    # README: 41.9 GiB of parameters, gradients, states and activations in stage 0, and two workspaces of
    # 32 MiB; blocks and segments take little beside them.
    assert 41.9 < first["allocated_bytes"] / 2**30 < first["reserved_bytes"] / 2**30 < 42.4
    assert first["closed_form_bytes"] is None
    held = sum(one["total_size"] for one in pickle.loads(path.read_bytes())["segments"])
    assert held == first["reserved_bytes"]
    expandable = ("--set", "memory.allocator=expandable_segments:True", "--json")
    other = json.loads(run("run-sim", "--memory-only", *expandable).stdout)["stages"][0]
    # What is left of a block below 1 MiB stays with it, but in expandable segments.
    assert 0.999 * first["allocated_bytes"] <= other["allocated_bytes"] <= first["allocated_bytes"]
    assert other["allocated_bytes"] <= other["reserved_bytes"] <= first["reserved_bytes"]


def test_sizes_that_a_trace_cannot_have_are_refused(run: Run, tmp_path: Path) -> None:
    build = GraphBuilder(1)
    template = build.template("fwd")
    template.compute("keep", alloc_bytes=1 << 20)
    build.program([0], [(template, 0, 0)])
    folder = tmp_path / "graph"
    for text in ('{"held": {"0": {"parameters": "1x1099511627776"}}}', '{"held": {"0": 3}}', '{"held": []}'):
        save_graph(build.build(), folder, lambda fresh, text=text: _write(fresh / "trace.json", text))
        result = run("run-sim", folder, "--cluster", "h100-8", "--memory-only")
        assert result.exit_code == 2
        assert "held must be storages as BYTESxCOUNT" in result.stderr
    held = '{"held": {"0": {"parameters": "8388608x2"}}}'
    save_graph(build.build(), folder, lambda fresh: _write(fresh / "trace.json", held))
    found = json.loads(run("run-sim", folder, "--cluster", "h100-8", "--memory-only", "--json").stdout)
    # Two of 8 MiB in a segment of 20; 1 MiB comes from the small pool, in one of 2.
    assert found["stages"][0]["allocated_bytes"] == found["stages"][0]["reserved_bytes"] - (5 << 20)


def _write(path: Path, text: str) -> None:
    path.write_text(text)


def test_what_would_fit_is_tried_along_all_axes_and_timed(run: Run, tmp_path: Path) -> None:
    """Experts of 8 layers, 8 x 3 x 1,024 x 4,096 x 8 weights: 4.5 GiB of them and of their gradients."""
    path = tmp_path / "experts.yaml"
    path.write_text(
        "model: {layers: 8, hidden: 1024, heads: 8, ffn: 4096, vocab: 8192, gated: true,"
        " moe: {num_experts: 8, top_k: 2, ffn: 4096}}\n"
        "cluster: h100-8\nparallel: {tp: 1}\ntraining: {seq: 1024, micro_batch: 1, global_batch: 64}\n"
    )
    refused = run("run-sim", path, "--set", "gpu.hbm_bytes=7GiB")
    assert refused.exit_code == 3, refused.output
    lines = [line for line in refused.stderr.splitlines() if "would fit" in line]
    told = {tuple(re.findall(r"parallel\.(tp|pp|ep)=", line)) for line in lines}
    assert {("tp",), ("pp",), ("ep",)} <= told, lines
    costs = [float(re.findall(r"\(([+-][\d.]+)% time", line)[0]) for line in lines]
    assert costs == sorted(costs)
    # What is said to fit does, and takes as long as is said: it is completed by the rules of the question.
    tight = ("run-sim", path, "--set", "gpu.hbm_bytes=7GiB")
    all_the_same = ("--json", "--no-perfetto", "--no-report", "--force", "--out", tmp_path / "out")
    whole = json.loads(run(*tight, "--set", "memory.check=warn", *all_the_same).stdout)["step_time_s"]
    for line, cost in zip(lines, costs, strict=True):
        flags = [part for setting in re.findall(r"--set (\S+)", line) for part in ("--set", setting)]
        fits = run(*tight, *flags, *all_the_same)
        assert fits.exit_code == 0, fits.output
        step = json.loads(fits.stdout)["step_time_s"]
        assert step / whole - 1 == pytest.approx(cost / 100, abs=6e-4), line
