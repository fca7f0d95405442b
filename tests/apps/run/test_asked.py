"""An answer says what was asked, and stands where no other question's answer is written over it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from simcore.timeline import RunInfo

Run = Callable[..., Result]
SMALL = """
model: {layers: 4, hidden: 256, heads: 4, ffn: 512, vocab: 1024}
cluster: h100-8
parallel: {tp: 2, pp: 2, virtual_stages: 2}
training: {seq: 128, micro_batch: 2, global_batch: 16, recompute: full}
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


def shown(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def head(result: Result) -> str:
    """The summary's paragraph about the question, as one line."""
    assert result.exit_code == 0, result.output
    text = result.stdout.partition("one step, mean")[0]
    assert max(map(len, text.splitlines())) <= 80
    return " ".join(text.split())


def test_the_header_states_the_job_and_marks_what_was_assumed(run: Run, small: Path) -> None:
    said = head(run("run-sim", small, "--no-perfetto"))
    assert "model on 8 GPUs (H100-SXM5-80GB) of cluster h100-8, fluid network" in said
    assert "TP2 x PP2 x DP2*, zero1*, schedule 1f1b* with 2 chunks a stage" in said
    # 16 samples on 2 replicas in twos: four microbatches each.
    assert "global batch 16 of 128 tokens, 4 microbatches of 2, bf16*, recompute full" in said
    # No experts: how they are spread does not matter.
    assert said.endswith(
        "* assumed; what matters most: --set software.preset=megatron-core, --set training.precision=bf16,"
        " --set training.sharding=zero1"
    )


def test_the_header_says_whose_scales_fp8_has(run: Run, small: Path) -> None:
    fp8 = ("--no-perfetto", "--set", "training.precision=fp8")
    assert "fp8, delayed scaling*," in head(run("run-sim", small, *fp8))
    assert "fp8, current scaling," in head(
        run("run-sim", small, *fp8, "--set", "software.fp8_recipe=current")
    )
    refused = run("run-sim", small, "--set", "training.precision=mxfp8")
    assert refused.exit_code == 2
    assert "training.precision=fp8 with software.fp8_recipe=mxfp8" in " ".join(refused.output.split())


def test_the_flags_that_the_header_names_change_nothing_and_silence_it(run: Run, small: Path) -> None:
    first = shown(run("run-sim", small, "--json", "--no-perfetto"))
    flags = [
        part
        for one in first["assumed"]
        if one["key"].startswith(("training.", "parallel.", "software.preset")) and one["value"] is not None
        for part in ("--set", f"{one['key']}={str(one['value']).lower()}")
    ]
    again = shown(run("run-sim", small, "--json", "--no-perfetto", *flags))
    assert again["step_time_s"] == first["step_time_s"]
    assert not {one["key"] for one in again["assumed"]} & set(flags[1::2])
    assert "assumed; what" not in head(run("run-sim", small, "--no-perfetto", "--force", *flags))


def test_a_cluster_that_nobody_named_is_assumed(run: Run, graph_dir: Path) -> None:
    said = head(run("run-sim", graph_dir))
    assert "of cluster h800-96*" in said and "what matters most: --cluster h800-96" in said
    assert "h800-96*" not in head(run("run-sim", graph_dir, "--cluster", "h800-96"))


def test_json_echoes_the_complete_job(run: Run, small: Path) -> None:
    found = shown(run("run-sim", small, "--json"))
    job = found["job"]
    assert {"model", "parallel", "training", "software", "cluster"} <= set(job)
    assert (job["model"]["layers"], job["model"]["hidden"]) == (4, 256)
    assert (found["parallel"], found["training"]) == (job["parallel"], job["training"])
    assert (job["parallel"]["dp"], job["training"]["sharding"]) == (2, "zero1")
    assert (job["software"]["name"], job["cluster"]["gpus"]) == ("megatron-core", 8)
    assert job["cluster"] | {"name": "h100-8", "gpu": "H100-SXM5-80GB", "num_nodes": 1} == job["cluster"]
    assumed = {one["key"]: one for one in found["assumed"]}
    assert assumed["parallel.dp"]["value"] == 2 and "leave of 8 GPUs" in assumed["parallel.dp"]["why"]
    assert "training.seq" not in assumed and "software.preset" in assumed


def test_another_question_has_another_folder_and_the_same_one_the_same(run: Run, small: Path) -> None:
    folders = {}
    for name, more in {
        "plain": (), "again": (), "slower": ("--set", "gpu.clock=0.9"), "tp": ("--set", "parallel.tp=1"),
        "edited": ("--edit", "class.gemm.speed=2"), "h200": ("--cluster", "h200-8"),
        "written otherwise": ("--set", "parallel.tp=2"),
    }.items():  # fmt: skip
        found = shown(run("run-sim", small, "--json", "--no-perfetto", *more))
        folders[name] = Path(found["timeline"]).parent
        assert Path("runs/latest").resolve() == folders[name].resolve()
    assert folders["plain"] == folders["again"]
    digests = {name: folder.name.rpartition("-")[2] for name, folder in folders.items()}
    assert digests["plain"] == digests["written otherwise"]
    assert len(set(digests.values())) == 5
    assert folders["slower"].name.startswith("model-h100-8-clock0.9-")
    assert folders["edited"].name.startswith("model-h100-8-class.gemm.speed2-")
    assert max(len(folder.name) for folder in folders.values()) < 70


def test_a_folder_is_not_written_over_by_another_question(run: Run, small: Path) -> None:
    assert run("run-sim", small, "--out", "mine").exit_code == 0
    before = RunInfo.read(Path("mine")).question
    assert run("run-sim", small, "--out", "mine").exit_code == 0  # the same question
    refused = run("run-sim", small, "--out", "mine", "--set", "gpu.clock=0.9")
    assert refused.exit_code == 2
    said = " ".join(refused.stderr.split())
    assert "mine answers another question" in said and "--force" in said and "small.yaml" in said
    assert RunInfo.read(Path("mine")).question == before
    assert run("run-sim", small, "--out", "mine", "--set", "gpu.clock=0.9", "--force").exit_code == 0
    assert RunInfo.read(Path("mine")).question != before


def test_runs_are_listed_with_their_questions(run: Run, small: Path, graph_dir: Path) -> None:
    assert run("report", "--list").exit_code == 2  # no runs yet
    assert run("run-sim", small, "--no-perfetto").exit_code == 0
    assert run("run-sim", graph_dir, "--set", "gpu.clock=0.9", "--no-perfetto").exit_code == 0
    listed = shown(run("report", "--list", "--json"))["runs"]
    assert [one["asked"].split("/")[-1] for one in listed] == [
        "tiny --cluster h800-96 --set gpu.clock=0.9", "small.yaml --cluster h100-8",
    ]  # fmt: skip
    assert all(Path(one["folder"]).is_dir() and one["step_time_s"] > 0 for one in listed)
    text = run("report", "--list").stdout
    assert "gpu.clock=0.9" in text and max(map(len, text.splitlines())) <= 80
    latest = run("report").stdout
    assert latest.startswith("tiny on 2 GPUs")
