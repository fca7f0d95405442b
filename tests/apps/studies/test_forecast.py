"""Frozen predictions: a table that fills itself in once, and says what has moved since."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from simcore.errors import InputError
from tests.commands import simcore

FROZEN = Path(__file__).parents[3] / "docs" / "forecast.csv"
SMALL = "llama3.2-1b,b200-8,training.global_batch=8 training.micro_batch=1 training.seq=1024"


def rows_of(table: Path) -> list[dict[str, str]]:
    with table.open(encoding="utf-8", newline="") as text:
        return list(csv.DictReader(text))


def test_a_job_is_asked_once_and_compared_later(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "jobs.csv"
    table.write_text(f"job,workload,cluster,set\nsmall,{SMALL}\nwrong,llama3.2-1b,b200-12,\n")
    assert simcore("forecast", table, "--write") == 0
    small, wrong = rows_of(table)
    assert 0 < float(small["low_s"]) < float(small["step_s"]) < float(small["high_s"])
    assert not wrong["step_s"] and "no whole number" in wrong["refused"]
    frozen = f"{2 * float(small['step_s']):.5g}"
    table.write_text(table.read_text().replace(f",{small['step_s']},", f",{frozen},"))
    assert simcore("forecast", table, "--write") == 0 and rows_of(table)[0]["step_s"] == frozen
    capsys.readouterr()
    before = table.read_text()
    assert simcore("forecast", table, "--only", "small", "--beside", tmp_path / "today.csv") == 0
    (today,) = rows_of(tmp_path / "today.csv")
    assert (today["frozen_s"], today["today_s"], today["moved"]) == (frozen, small["step_s"], "-0.5000")
    assert simcore("forecast", table, "--beside", table) == InputError.exit_code
    assert table.read_text() == before
    said = capsys.readouterr().out
    assert f"small: frozen {frozen} s, today {small['step_s']} s (-50.0%)" in said
    assert "1 of 1 predictions have moved" in said


def test_a_word_in_no_name_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "jobs.csv"
    table.write_text(f"job,workload,cluster,set\nsmall,{SMALL}\n")
    assert simcore("forecast", table, "--only", "large") == InputError.exit_code


def test_what_was_frozen_covers_what_is_bought_today() -> None:
    answered = [row for row in rows_of(FROZEN) if row["step_s"]]
    assert len(answered) >= 60
    names = " ".join(row["job"] for row in answered)
    for word in ("b200", "b300", "gb200", "gb300", "mi300x", "mi325x", "mi355x", "lora", "llama31_8b", "405b",
                 "qwen3_30b", "gpt_oss", "nemotron", "deepseek"):  # fmt: skip
        assert word in names, word
    for row in answered:
        assert 0 < float(row["low_s"]) < float(row["step_s"]) < float(row["high_s"])
