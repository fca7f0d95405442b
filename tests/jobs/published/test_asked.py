"""What was validated is what a user gets: a published run as YAML is the same job, of the same time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from simcore.apps.measured.runs.predict import predict_case
from simcore.apps.measured.runs.score import Scored, score_rows
from simcore.apps.run.scenario import resolve_scenario
from simcore.apps.validate.runs.asked import Asked, ask, case_yaml
from simcore.apps.validate.runs.command import validate_runs
from simcore.errors import InputError
from simcore.hardware import hardware_hash, load_cluster
from simcore.run import run
from tests.commands import simcore
from workloads.jobs import complete
from workloads.jobs.published import RunRow, describe, read_run_rows

#: The cheapest run of each family of the table that docs/validation.md is written from, with its source.
TABLE = Path(__file__).parent / "a_run_of_each_family.csv"
ROWS = {row.family: row for row in read_run_rows(str(TABLE))}


@pytest.mark.parametrize("family", ROWS)
def test_a_user_describes_the_job_that_was_validated(family: str, tmp_path: Path) -> None:
    """Every case of the row: the same specs, and the same hardware but for names."""
    for case in describe(ROWS[family]).cases:
        path = tmp_path / "job.yaml"
        path.write_text(case_yaml(case, fits=True), encoding="utf-8")
        scenario = resolve_scenario(str(path), settings={})
        assert scenario.described is not None
        rated = load_cluster(scenario.cluster)
        job = scenario.described.complete(rated)
        assert (job.model, job.parallel, job.training) == (case.model, case.parallel, case.training)
        assert job.software == case.software
        cluster = load_cluster(scenario.cluster, {**job.gpu, **scenario.settings.hardware})
        assert hardware_hash(cluster) == hardware_hash(load_cluster(case.cluster, case.overrides))


@pytest.mark.parametrize(
    "family", ["dgxc_llama8b", "vtrain_multi", "torchtitan", "mosaic_a100", "moe_folding"]
)
def test_a_user_is_told_what_was_validated(family: str, tmp_path: Path) -> None:
    from simcore.apps.main import app

    (case, *_) = describe(ROWS[family]).cases
    path = tmp_path / "job.yaml"
    path.write_text(case_yaml(case), encoding="utf-8")
    result = CliRunner().invoke(app, ["run-sim", str(path), "--json", "--out", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["step_time_s"] == pytest.approx(predict_case(case), rel=1e-3)


def test_python_and_the_command_line_say_the_same(tmp_path: Path) -> None:
    """As docs/architecture.md has it, on fewer layers."""
    from simcore.apps.main import app

    said = {"model": {"model": "llama3-8b", "layers": 2}, "parallel": {"tp": 2}}
    job = complete(said, "a job", num_gpus=8, generation="hopper")
    ran = run(job.graph(), load_cluster("h100-8", job.gpu))
    changes = ["--set", "parallel.tp=2", "--set", "model.layers=2", "--out", str(tmp_path / "run")]
    result = CliRunner().invoke(app, ["run-sim", "llama3-8b", "--cluster", "h100-8", *changes, "--json"])
    assert json.loads(result.stdout)["step_time_s"] == ran.step_s


def test_a_row_is_shown_with_its_other_cases(capsys: pytest.CaptureFixture[str]) -> None:
    row = next(row for row in ROWS.values() if len(describe(row).cases) > 1)
    assert simcore("validate", "--runs", TABLE, "--show", row.id) == 0
    first = capsys.readouterr().out
    assert f"# {row.id}: " in first
    assert "#   --case 2: " in first
    assert simcore("validate", "--runs", TABLE, "--show", row.id, "--case", "2") == 0
    second = capsys.readouterr().out
    assert yaml.safe_load(first) != yaml.safe_load(second)
    assert set(yaml.safe_load(first)) >= {"model", "parallel", "training", "software", "cluster"}
    assert simcore("validate", "--runs", TABLE, "--show", row.id, "--case", "99") == 2
    assert "has cases 1 to" in capsys.readouterr().err
    assert simcore("validate", "--runs", TABLE, "--show", row.id[:-1]) == 2
    assert f"did you mean '{row.id}'" in capsys.readouterr().err
    assert simcore("validate", "--nccl", TABLE, "--show", row.id) == 2


def test_a_page_is_not_written_where_a_user_is_told_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "validation.md"
    table = tmp_path / "runs.csv"
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    table.write_text("\n".join([lines[0], next(line for line in lines if "dgxc_llama8b" in line)]) + "\n")
    told: Callable[..., list[Asked]] = lambda _: [Asked("r1", 2.0, 2.01)]  # noqa: E731
    monkeypatch.setattr("simcore.apps.validate.runs.command.ask", told)
    with pytest.raises(InputError, match=r"not written: .*r1: 2.0100 s, validated 2.0000 s"):
        validate_runs(str(table), page=str(page))
    assert not page.exists()


def test_the_cheapest_row_of_a_family_is_asked() -> None:
    scored: Scored = score_rows([_row(), _row(id="r2", global_batch="64"), _row(id="r3", family="other")])
    asked = ask(scored.scores)
    assert [one.row for one in asked] == ["r1", "r3"]
    assert not any(one.differs for one in asked)
    assert asked[0].told_s == pytest.approx(asked[0].validated_s, rel=1e-6)


def _row(**changes: str) -> RunRow:
    columns = {
        "id": "r1", "family": "new", "model": "GPT-3 tiny", "layers": "4", "hidden": "1024", "heads": "16",
        "ffn": "4096", "vocab": "51200", "seq": "1024", "gpus": "8", "gpu_type": "H100", "tp": "2", "pp": "1",
        "global_batch": "8", "micro_batch": "2", "precision": "bf16", "sp": "yes", "recompute": "none",
        "metric": "step_time_s", "value": "0.1", "quality": "A",
    }  # fmt: skip
    return RunRow(2, {**columns, **changes})
