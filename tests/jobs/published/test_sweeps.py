"""Rank order and repeated reports: Kendall's tau, what is compared, how far one run's reports differ."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcore.apps.measured.runs.score import DescribedRow, RowScore
from simcore.apps.validate.runs.command import rank_order
from simcore.apps.validate.runs.page.orders import order_lines, repeat_lines
from simcore.apps.validate.runs.page.page import metric_lines
from simcore.apps.validate.runs.sweeps import (
    kendall_tau,
    layouts,
    noise,
    repeats,
    scalings,
    tau_of_exact_predictions,
)
from workloads.jobs.published import RunRow, describe

_GPT = {
    "id": "r1", "family": "new", "model": "GPT-3 tiny", "layers": "4", "hidden": "2048", "heads": "16",
    "kv_heads": "16", "ffn": "8192", "vocab": "51200", "seq": "2048", "gpus": "8", "gpu_type": "H100",
    "tp": "2", "pp": "1", "global_batch": "8", "micro_batch": "2", "precision": "bf16", "sp": "yes",
    "recompute": "none", "metric": "step_time_s", "value": "0.1", "quality": "A",
}  # fmt: skip


def _score(measured_s: float, low_s: float, high_s: float = 0.0, odd: str = "", **changes: str) -> RowScore:
    row = RunRow(2, {**_GPT, **changes})
    return RowScore(DescribedRow(row, describe(row), measured_s, 1.0, odd), low_s, high_s or low_s)


def test_tau_counts_pairs_in_the_same_order() -> None:
    assert kendall_tau([_score(1, 2), _score(2, 3), _score(3, 5)]).value == 1.0
    # Pairs (1,2) and (1,3) agree, (2,3) does not: (2 - 1) / 3.
    found = kendall_tau([_score(1, 1), _score(2, 3), _score(3, 2)])
    assert (found.value, found.pairs) == (pytest.approx(1 / 3), 3)
    assert math.isnan(kendall_tau([_score(1, 2), _score(2, 2)]).value)  # predicted alike


def test_tau_leaves_out_pairs_nearer_than_noise() -> None:
    # Measured 1.00 and 1.02 are in the wrong order, yet within 3%: the other two pairs agree.
    rows = [_score(1.0, 2.0), _score(1.02, 1.9), _score(2.0, 3.0)]
    assert kendall_tau(rows).value == pytest.approx(1 / 3)
    found = kendall_tau(rows, apart=0.03)
    assert (found.value, found.pairs) == (1.0, 2)


def test_exact_predictions_cannot_order_what_scatters() -> None:
    # Two rows one standard deviation apart: 2 Phi(1) - 1 = 0.6827.
    rows = [_score(1.0, 1.0), _score(math.exp(0.02), 1.0)]
    assert tau_of_exact_predictions(rows, 0.02) == pytest.approx(0.6827, abs=1e-4)
    assert tau_of_exact_predictions(rows, 0.0) == 1.0
    assert math.isnan(tau_of_exact_predictions(rows[:1], 0.02))


def test_a_band_is_compared_by_its_middle() -> None:
    # Nearest to what was measured they would be 1 and 2, the right order; the middles are 4 and 2.
    assert kendall_tau([_score(1.0, 1.0, 16.0), _score(2.0, 2.0, 2.0)]).value == -1.0


def test_rows_on_more_gpus_are_compared_by_what_a_token_costs() -> None:
    # 8 GPUs take 1 s for 8 samples, 16 take 0.6 s for the same: 1 against 1.2 GPU seconds a sample.
    small = _score(1.0, 1.0)
    assert math.isnan(kendall_tau([small, _score(0.6, 0.5, gpus="16")]).value)  # predicted alike
    assert kendall_tau([small, _score(0.6, 0.55, gpus="16")]).value == 1.0
    assert kendall_tau([small, _score(0.6, 0.45, gpus="16")]).value == -1.0


@given(st.permutations(range(5)))
def test_tau_does_not_depend_on_the_order_of_rows(order: list[int]) -> None:
    rows = [_score(m, p) for m, p in ((1.0, 1.2), (1.5, 1.1), (2.0, 2.5), (2.1, 2.0), (3.0, 3.3))]
    assert kendall_tau([rows[k] for k in order]) == kendall_tau(rows)


def test_sweeps_need_four_rows_and_scaling_more_than_one_number_of_gpus() -> None:
    layout = [_score(1.0 + k, 1.0, tp=str(2**k)) for k in range(4)]
    assert [len(rows) for rows in layouts(layout).values()] == [4]
    assert layouts(layout[:3]) == {}
    assert scalings(layout) == {}
    scaled = [_score(1.0, 1.0, gpus=str(8 * 2**k), global_batch=str(8 * 2**k)) for k in range(4)]
    assert list(scalings(scaled)) == ["new: GPT-3 tiny, 2048 tokens, bf16"]


def test_repeats_are_rows_that_describe_one_run() -> None:
    # exp(+-0.01) about the mean: variance 2 * 0.01 ** 2 over one degree of freedom.
    twice = [_score(math.exp(d), 1.0, notes=str(d)) for d in (-0.01, 0.01)]
    other = [_score(5.0, 1.0, micro_batch="1"), _score(7.0, 1.0, odd="strange")]
    found = repeats([*twice, *other])
    spread = math.expm1(math.sqrt(2) * 0.01)
    assert (found["new"].runs, found["new"].rows, found["new"].spread) == (1, 2, pytest.approx(spread))
    assert noise(found, "new") == noise(found, "unknown") == pytest.approx(math.sqrt(2) * spread)
    assert (repeats(other), noise({}, "new")) == ({}, 0.0)
    # Predicted 1.0 for both: errors of -1% and +1%, as large as the spread's 1.4% over the root of two.
    (line,) = (line for line in repeat_lines([*twice, *other[1:]]) if line.startswith("| new |"))
    assert line == "| new | 1 | 2 | 1.4 | 1.0 | 0.7 |"


def test_the_page_shows_taus_of_both_kinds() -> None:
    rows = [_score(1.0 + k, 1.0 + k, tp=str(2**k), odd="strange" if k == 3 else "") for k in range(4)]
    page = order_lines(rows)
    assert "| new: GPT-3 tiny, 8 GPUs, batch 8, bf16 | 4 | 1.00 | 1.00 | 1.00 | 1.00 | 3 |  |" in page


def test_json_holds_taus_by_kind_of_sweep() -> None:
    rows = [_score(1.0 + k, 1.0 + k, tp=str(2**k)) for k in range(4)]
    (found,) = rank_order([*rows, _score(9.0, 1.0, model="alone", micro_batch="1")])
    assert found == {
        "kind": "layouts", "sweep": "new: GPT-3 tiny, 8 GPUs, batch 8, bf16", "rows": 4, "tau": 1.0,
        "tau_without_odd": 1.0, "tau_apart": 1.0, "tau_reachable": 1.0, "pairs_apart": 6,
    }  # fmt: skip
    (alike,) = rank_order([_score(1.0 + k, 1.0) for k in range(4)])
    assert alike["tau"] is None


def test_metrics_are_explained_and_checked_against_derived_times() -> None:
    # 8 x 2048 tokens on 8 GPUs at 4096 tokens/s each: 0.5 s; the table says 0.51, so the formula is 2% away.
    row = {"metric": "tokens_per_s_per_gpu", "value": "4096", "step_time_s_derived": "0.51"}
    lines = metric_lines([_score(0.51, 1.0, **row), _score(1.0, 1.0)])
    assert any(
        line.startswith("| tokens_per_s_per_gpu | batch x sequence / (rate x GPUs) | 1 |") and "2.0" in line
        for line in lines
    )
    assert any(line.startswith("| step_time_s | as published | 1 |") for line in lines)
