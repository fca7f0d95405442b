"""Runs that neither presets nor constants were made from, predicted as any table of a user."""

from __future__ import annotations

from pathlib import Path

import pytest

from simcore.apps.measured.runs.score import score_rows
from workloads.jobs.published import RunRow, describe, notes_of, read_run_rows

#: NeMo's user guide of 24.12 and Megatron-LM's examples: DGX H100, fp8.
TABLE = Path(__file__).parent / "unseen_runs.csv"

#: Rows that are simulated in about a second.
QUICK = ("nemo2412_gpt3-20b_64", "nemo2412_llama2-7b_8", "nemo2412_LoRA_llama2-7b_8", "mlm_llama3-8b")


def _rows() -> dict[str, RunRow]:
    return {row.id: row for row in read_run_rows(str(TABLE))}


@pytest.mark.parametrize("name", list(_rows()))
def test_every_row_is_understood(name: str) -> None:
    row = _rows()[name]
    band = describe(row)
    assert notes_of(row) == []
    assert band.preset == ("nemo-dgxc" if "nemo" in name else "megatron-core")
    assert all(case.training.precision == "fp8" for case in band.cases)
    assert all((case.training.trainable == "lora") == ("LoRA" in name) for case in band.cases)


def test_predictions_are_near_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """The bound is a tenth above the worst of all 21 rows (10.0%, Llama 3 8B of NeMo 24.12; mean 3.4%)."""
    rows = _rows()
    scored = score_rows([rows[name] for name in QUICK])
    capsys.readouterr()
    assert not scored.skipped
    assert max(abs(score.error) for score in scored.scores) < 0.11
