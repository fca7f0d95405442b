"""Published recipes beside what a plan finds for the same job."""

from __future__ import annotations

import csv
import json

import pytest

from simcore.apps.bench.recipes import bench_recipes, open_job, recipes
from simcore.errors import InputError
from workloads.jobs.published import RunRow, describe, read_run_rows

ROW = {
    "id": "r8", "family": "new", "source_repo_or_paper": "NVIDIA/somewhere", "model": "tiny", "layers": "2",
    "hidden": "1024", "heads": "8", "kv_heads": "8", "ffn": "4096", "vocab": "32000", "seq": "1024",
    "gpus": "8", "gpu_type": "H100", "tp": "8", "pp": "1", "global_batch": "8", "micro_batch": "8",
    "precision": "bf16", "recompute": "full", "metric": "step_time_s", "value": "0.1", "quality": "A",
}  # fmt: skip


def row(**changes):
    return RunRow(2, {**ROW, **changes})


def test_the_question_is_what_is_trained_and_not_how():
    said = open_job(describe(row()).cases[0])
    assert said["training"] == {"precision": "bf16", "seq": 1024, "global_batch": 8}
    assert "parallel" not in said
    assert (said["cluster"], said["model"]["layers"]) == ("h100-8", 2)


def test_of_each_model_and_precision_the_largest_that_is_asked_for():
    rows = [
        row(), row(id="r16", gpus="16"), row(id="again", gpus="16"), row(id="r64", gpus="64"),
        row(id="fp8", precision="fp8"), row(id="theirs", model="other", source_repo_or_paper="somebody"),
    ]  # fmt: skip
    assert [one.id for one in recipes(rows, 16)] == ["again", "fp8"]


def test_a_plan_beats_a_recipe_that_splits_and_recomputes_needlessly(tmp_path, capsys):
    path = tmp_path / "runs.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(ROW))
        writer.writeheader()
        writer.writerow(ROW)
    assert len(read_run_rows(str(path))) == 1
    bench_recipes(path, as_json=True)
    told = json.loads(capsys.readouterr().out)
    (found,) = told["rows"]
    assert told["refused"] == {}
    assert found["measured_s"] == 0.1
    assert found["recipe"] == "tp8 dp1 mb8 zero1 full"
    assert found["ratio"] == pytest.approx(found["best_s"] / found["recipe_s"])
    assert found["ratio"] < 0.9
    assert not found["lacking"]
    assert "full" not in found["best"].split()
    with pytest.raises(InputError, match="'r8'"):
        bench_recipes(path, ["r9"])
