"""Choosing a strategy by predictions: what it costs where several were measured."""

from __future__ import annotations

import csv
import json
import math

import pytest

from simcore.apps.measured.runs.score import DescribedRow, RowScore
from simcore.apps.validate.command import validate
from simcore.apps.validate.runs.choices import choices, read_rows
from simcore.apps.validate.runs.sweeps import RepeatedRuns
from simcore.errors import InputError
from simcore.planning.ties import LEVEL
from workloads.evidence import siblings
from workloads.jobs.published import RunRow, describe

_GPT = {
    "family": "new", "model": "GPT-3 tiny", "layers": "8", "hidden": "2048", "heads": "16",
    "kv_heads": "16", "ffn": "8192", "vocab": "51200", "seq": "2048", "gpus": "8", "gpu_type": "H100",
    "pp": "1", "global_batch": "8", "micro_batch": "1", "precision": "bf16", "sp": "yes",
    "recompute": "none", "metric": "step_time_s", "value": "0.1", "quality": "A",
}  # fmt: skip
_MEASURED = {
    "id": "s1", "group": "tiny", "source": "somebody/measured", "phase": "train", "model": "gpt",
    "engine": "megatron-lm", "layers": "2", "hidden": "1024", "heads": "16", "seq_len": "2048",
    "params_b": "0.5", "gpu": "H100-SXM-80GB", "num_gpus": "8", "precision": "bf16", "global_batch": "8",
    "micro_batch": "1", "pp": "1", "value": "100", "unit": "ms/iteration", "quality": "A",
}  # fmt: skip


def score(tp: int, measured_s: float, predicted_s: float, odd: str = "", **said: str) -> RowScore:
    row = RunRow(2, {**_GPT, "id": f"tp{tp}", "tp": str(tp), **said})
    return RowScore(DescribedRow(row, describe(row), measured_s, 1.0, odd), predicted_s, predicted_s)


def test_the_loss_is_that_of_the_strategy_predicted_fastest():
    # tp2 is predicted fastest and took 1.1; the two reports of tp1 are one strategy of sqrt(0.8 * 1.25) = 1.
    rows = [score(1, 0.8, 3), score(1, 1.25, 3), score(2, 1.1, 2), score(4, 1.2, 4), score(8, 1.3, 5)]
    (found,) = choices(rows, {})
    assert (found.rows, found.strategies, found.chosen, found.best) == (5, 4, "tp2", "tp1")
    assert found.loss == pytest.approx(0.1)
    assert found.exact_loss == 0.0  # nothing scatters
    assert found.simplest_loss == found.loss


def test_the_simplest_of_what_is_predicted_as_good_is_what_plans_show_first():
    # tp2 is predicted 1.96% behind tp4, and took 0.9 of it; tp1 lies just within what measured siblings do
    # not tell apart, which plans mark; tp8 took least.
    within = 2.0 * siblings().ratio_of(LEVEL) - 0.001
    rows = [score(4, 1.0, 2.0), score(2, 0.9, 2.04), score(1, 1.1, within), score(8, 0.8, 3)]
    (found,) = choices(rows, {})
    assert (found.chosen, found.best) == ("tp4", "tp8")
    assert found.simplest_loss == pytest.approx(0.9 / 0.8 - 1)
    assert found.equal_loss == pytest.approx(1.1 / 0.8 - 1)


def test_plans_choose_among_what_fits():
    """20 billion parameters (24 layers of 8,192): of half, bf16, fp32 gradients and ZeRO-1's quarter of
    12 bytes, 9 bytes each, are more than an H100 has; of an eighth all 18 are not.
    """
    large = {"layers": "24", "hidden": "8192", "heads": "64", "kv_heads": "64", "ffn": "32768"}
    found = choices(
        [
            score(2, 1.1, 2, **large), score(8, 1.2, 3, **large), score(4, 1.3, 4, **large),
            score(8, 1.6, 6, **large, recompute="full"),
        ],
        {},
    )  # fmt: skip
    (one,) = found
    assert (one.chosen, one.planned, one.not_fitting) == ("tp2", "tp8", ("tp2",))
    assert one.loss == 0.0
    assert one.planned_loss == pytest.approx(1.2 / 1.1 - 1)


def test_odd_rows_and_groups_that_are_predicted_alike_say_nothing():
    rows = [score(1, 1.0, 3), score(2, 1.1, 2), score(4, 1.2, 4), score(8, 1.3, 5, odd="twice as slow")]
    assert choices(rows, {}) == []  # three are no sweep
    assert choices([score(1, 1.0 + k / 10, 3) for k in range(4)], {}) == []


def test_exact_predictions_lose_what_luck_decides():
    # Two strategies truly alike, the others far behind, each report scattered by s = 2%.  The one chosen is
    # behind the other by max(0, d), d of deviation s sqrt(2): in the mean s sqrt(2) / sqrt(2 pi).
    rows = [score(1, 1.0, 1), score(2, 1.0, 2), score(4, 2.0, 3), score(8, 2.0, 4)]
    (found,) = choices(rows, {"new": RepeatedRuns(5, 10, 0.02)})
    assert found.loss == 0.0
    assert found.exact_loss == pytest.approx(0.02 / math.sqrt(math.pi), rel=0.1)


def table(tmp_path, rows, name="strategies.csv"):
    path = tmp_path / name
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def test_measured_strategies_are_rows_of_published_runs(tmp_path):
    vtrain = {**_MEASURED, "source": "VIA-Research/vTrain", "gpu": "A100-SXM-80GB", "value": "3566.5"}
    path = table(tmp_path, [{**vtrain, "tp": "1"}, {**vtrain, "phase": "infer-static", "tp": "2"}])
    (row,) = read_rows(path)
    assert row.number("value") == pytest.approx(3.5665)
    case = describe(row).cases[0]
    assert (case.model.layers, case.parallel.tp, case.parallel.dp) == (2, 1, 8)
    assert case.training.recompute == "full"  # its repository says so of all its runs
    wrong = table(tmp_path, [{**_MEASURED, "unit": "tokens/s", "tp": "1"}], "wrong.csv")
    with pytest.raises(InputError, match="tokens/s"):
        read_rows(wrong)


def test_a_report_of_two_tables_counts_once(tmp_path, capsys):
    rows = [{**_MEASURED, "id": f"s{tp}", "tp": str(tp), "value": str(100 + tp)} for tp in (1, 2, 4, 8)]
    path = table(tmp_path, rows)
    validate(strategies=[path], more=[path], as_json=True)
    found = json.loads(capsys.readouterr().out)
    (group,) = found["groups"]
    assert group["rows"] == 4
    # The larger tp is, the slower a tiny model on eight GPUs is both measured here and predicted.
    assert (group["chosen"], group["loss"], group["tau"]) == ("s1", 0.0, 1.0)
    validate(strategies=[path])
    assert "groups: 1" in capsys.readouterr().out
    with pytest.raises(InputError, match="no four strategies"):
        validate(strategies=[table(tmp_path, rows[:3], "few.csv")])
