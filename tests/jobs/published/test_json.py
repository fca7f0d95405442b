"""``validate.py --runs CSV --json``: one object for each row, whatever the row is like."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from simcore.apps.validate.runs.command import validate_runs
from workloads.jobs.published import Case, read_run_rows

_GOOD = {
    "id": "good", "family": "new", "model": "tiny GPT", "layers": "2", "hidden": "512", "heads": "8",
    "ffn": "2048", "vocab": "1000", "seq": "512", "gpus": "8", "gpu_type": "H100", "tp": "1", "pp": "1",
    "global_batch": "16", "micro_batch": "2", "precision": "bf16", "recompute": "none",
    "metric": "step_time_s", "value": "0.01", "quality": "A", "dp": "",
}  # fmt: skip


def _predicted(tmp_path: Path, capsys: pytest.CaptureFixture[str], *rows: dict[str, str]) -> dict[str, Any]:
    table = tmp_path / "runs.csv"
    with table.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    validate_runs(str(table), as_json=True)
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_every_row_has_an_object_and_bad_ones_their_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = {
        "no gpus": {"gpus": ""}, "no such gpu": {"gpu_type": "MI250X"}, "no such model": {"layers": ""},
        "experts": {"tp": "3"}, "negative": {"seq": "-1"}, "empty": dict.fromkeys(_GOOD, ""),
    }  # fmt: skip
    rows = [{**_GOOD, **changes, "id": name} for name, changes in bad.items()]
    found = _predicted(tmp_path, capsys, *rows, _GOOD)
    assert [row["id"] for row in found["rows"]] == [*bad, "good"]
    *refused, good = found["rows"]
    assert all(row["skipped_reason"] and row["predicted_step_s"] is None for row in refused)
    assert "'gpus' is empty" in refused[0]["skipped_reason"]
    assert "MI250X" in refused[1]["skipped_reason"]
    assert len(found["skipped"]) == len(bad)
    assert good["skipped_reason"] == "" and good["measured_step_s"] == 0.01
    assert good["error"] == pytest.approx(good["predicted_step_s"] / 0.01 - 1)
    assert good["low_step_s"] == good["middle_step_s"] == good["high_step_s"] == good["predicted_step_s"]
    assert good["preset"] == "megatron-core" and good["unpublished"] == []
    assert any("no software named" in note for note in good["assumed"])


def test_a_row_without_a_measurement_is_predicted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = {key: value for key, value in _GOOD.items() if key not in ("metric", "value", "id")}
    (alone,) = _predicted(tmp_path, capsys, plain)["rows"]
    assert alone["id"] == "line 2"
    assert alone["error"] is None and "'value' is empty" in alone["skipped_reason"]
    found = _predicted(tmp_path, capsys, _GOOD, {**_GOOD, "id": "odd metric", "metric": "loss"})
    good, odd_metric = found["rows"]
    assert odd_metric["predicted_step_s"] == good["predicted_step_s"] == alone["predicted_step_s"]
    assert "unknown metric 'loss'" in odd_metric["skipped_reason"]
    assert found["overall"]["n"] == 1


def test_a_band_says_what_is_unpublished(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    open_row = {**_GOOD, "quality": "B", "recompute": "", "micro_batch": ""}
    (row,) = _predicted(tmp_path, capsys, open_row)["rows"]
    assert set(row["unpublished"]) == {"micro_batch", "recompute"}
    assert row["low_step_s"] < row["high_step_s"]
    assert row["middle_step_s"] == pytest.approx((row["low_step_s"] + row["high_step_s"]) / 2)
    assert row["predicted_step_s"] == min(max(0.01, row["low_step_s"]), row["high_step_s"])


def test_a_bug_in_one_case_of_a_band_does_not_hide_behind_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def one_fails(case: Case, physics: object) -> float:
        if case.training.micro_batch == 1:
            raise ZeroDivisionError("by nothing")
        return 1.0

    monkeypatch.setattr("simcore.apps.measured.runs.score.predict_case", one_fails)
    open_row = {**_GOOD, "quality": "B", "recompute": "", "micro_batch": ""}
    failed, fine = _predicted(tmp_path, capsys, open_row, {**open_row, "micro_batch": "2"})["rows"]
    assert failed["skipped_reason"] == "bug: ZeroDivisionError: by nothing"
    assert failed["predicted_step_s"] is None
    assert fine["skipped_reason"] == "" and fine["predicted_step_s"] == 1.0


def test_gpus_and_thousands_as_tables_write_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # 4 x 2 = 8 GPUs; 1k tokens are 1,024.
    rows = [
        {**_GOOD, "gpus": "8", "tp": "2", "seq": "1024"},
        {**_GOOD, "gpus": "", "dp": "4", "tp": "2", "seq": "1k"},
    ]
    plain, written = _predicted(tmp_path, capsys, *rows)["rows"]
    assert written["gpus"] == 8
    assert written["predicted_step_s"] == plain["predicted_step_s"]


def test_a_table_that_a_spreadsheet_wrote_is_read(tmp_path: Path) -> None:
    """Spreadsheets put a byte order mark before the first column's name."""
    table = tmp_path / "runs.csv"
    lines = [",".join(_GOOD), ",".join(_GOOD.values())]
    table.write_text("\n".join(lines), encoding="utf-8-sig")
    (row,) = read_run_rows(str(table))
    assert row.id == "good"
