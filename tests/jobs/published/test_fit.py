"""Clocks fitted to runs: curves against simulations, families left out, times kept, pieces switched off."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simcore.apps.fit.runs import STEPS, ClockCurve, curves, fit, fit_numbers, print_runs_fit, probe
from simcore.apps.measured.runs.cache import StepTimes
from simcore.apps.measured.runs.predict import case_key, simulated_s
from simcore.apps.measured.runs.score import DescribedRow, RowScore, describe_rows
from simcore.apps.validate.runs.ablations import ABLATIONS, ablate, explain
from simcore.apps.validate.runs.command import validate_runs
from simcore.apps.validate.runs.ranking import PUBLISHED_BEST, REFERENCE, StrategySearch
from simcore.errors import InputError
from simcore.hardware import load_gpu
from simcore.hardware.sustained import Sustained
from workloads.evidence import read_runs
from workloads.jobs.published import RunRow, describe

_GPT = {
    "id": "r1", "family": "new", "model": "GPT-3 tiny", "layers": "4", "hidden": "2048", "heads": "16",
    "kv_heads": "16", "ffn": "8192", "vocab": "51200", "seq": "2048", "gpus": "8", "gpu_type": "H100",
    "tp": "2", "pp": "1", "global_batch": "8", "micro_batch": "2", "precision": "bf16", "sp": "yes",
    "recompute": "none", "metric": "step_time_s", "value": "0.1", "quality": "A",
}  # fmt: skip
_START = {"gh100": Sustained(0.8)}


def _row(**changes: str) -> RunRow:
    return RunRow(2, {**_GPT, **changes})


def _curve(family: str, measured_s: float, at_rated_s: float, fp8_slope: float = 0.0) -> ClockCurve:
    """A row whose time is ``at_rated_s / clock * fp8 ** fp8_slope``."""
    described = DescribedRow(_row(family=family), describe(_row()), measured_s, 1.0, "")
    clocks = 0.8 * np.array(STEPS)
    return ClockCurve(described, clocks, np.log(at_rated_s / clocks[None, :]), 1.0, np.array([fp8_slope]))


def test_a_curve_goes_through_what_was_simulated_and_is_near_it_in_between() -> None:
    described, _ = describe_rows([_row()])
    (curve,) = curves(described, _START)
    (case,) = described[0].band.cases
    whole = simulated_s(case, 1, {"gh100": Sustained(0.8)})  # 8 samples on 4 replicas, 2 each: one microbatch
    assert curve.seconds(np.array([0.8]), np.ones(1))[0, 0] == pytest.approx(whole, rel=1e-9)
    assert probe([curve], _START) < 0.002
    slower, faster = curve.seconds(np.array([0.7, 0.9]), np.ones(2))[0]
    # Slower than at 0.9, yet by less than the clock: some of the step knows no clock.
    assert 1 < slower / faster < 0.9 / 0.7


def test_a_fit_finds_the_clock_that_made_the_rows_and_leaves_a_family_out() -> None:
    # Rows of "a" and "b" ran at 0.75, those of "c" at 0.9: 1 / 0.75 and 1 / 0.9 seconds.
    rows = [_curve("a", 1 / 0.75, 1.0), _curve("b", 1 / 0.75, 1.0), _curve("c", 1 / 0.9, 1.0)]
    fitted = fit(rows)
    assert fitted.numbers == {"gh100": Sustained(0.75)}  # the least mean of |error|: two of three families
    assert fitted.outside["c"] == pytest.approx(0.9 / 0.75 - 1)
    # Without "a": any clock between 0.75 and 0.9 leaves "b" or "c" wrong by about as much.
    assert 0.75 <= fitted.numbers_without["a"]["gh100"].clock <= 0.9
    assert fitted.inside["a"] <= fitted.outside["a"] + 1e-9
    assert fit_numbers([]) == Sustained()


def test_rows_in_fp8_tell_their_rate_from_the_clock() -> None:
    # At clock 0.8: bf16 rows take 1 / 0.8; those in fp8 0.9 ** -0.5 of it, half of their time being products.
    slow = 1 / 0.8 * 0.9**-0.5
    rows = [_curve("a", 1 / 0.8, 1.0), _curve("b", 1 / 0.8, 1.0), _curve("c", slow, 1.0, -0.5)]
    assert fit_numbers(rows) == Sustained(0.8, 0.9)


def test_fp8_is_slower_where_the_die_is_said_to_be() -> None:
    described, _ = describe_rows([_row(), _row(id="r2", precision="fp8")])
    plain, fp8 = curves(described, _START)
    assert plain.fp8_slope[0] == 0.0
    assert -1 < fp8.fp8_slope[0] < 0
    (case,) = described[1].band.cases
    slower = simulated_s(case, 1, {"gh100": Sustained(0.8, 0.8)})
    drawn = fp8.seconds(np.array([0.8]), np.array([0.8]))[0, 0]  # the slope comes from 0.9
    assert drawn == pytest.approx(slower, rel=0.01)


def test_a_family_counts_once_however_many_rows_it_has() -> None:
    many = [_curve("many", 1 / 0.9, 1.0)] * 9
    rows = [*many, _curve("x", 1 / 0.7, 1.0), _curve("y", 1 / 0.7, 1.0)]
    assert fit_numbers(rows).clock == pytest.approx(0.7)


def test_times_are_kept_and_broken_lines_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "times.jsonl"
    described, _ = describe_rows([_row()])
    (case,) = described[0].band.cases
    times = StepTimes(path)
    key = times.key(case_key(case), case, _START)
    times.put(key, 0.25)
    times.put("other", "bug: KeyError")
    path.write_text(path.read_text(encoding="utf-8") + '{"key": "cut', encoding="utf-8")
    again = StepTimes(path)
    assert again.get(key) == 0.25
    assert again.get("other") is None
    assert again.key(case_key(case), case, {"gh100": Sustained(0.9)}) != key
    with pytest.raises(InputError, match="cannot read"):
        StepTimes(tmp_path)


@pytest.mark.parametrize(
    "result", ["NaN", "Infinity", "-1.5", "0.0", '"bug: KeyError"', '""', "null", "[1.0]", '1.0, "more": 2']
)
def test_a_line_that_holds_no_step_time_is_told_and_forgotten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], result: str
) -> None:
    path = tmp_path / "times.jsonl"
    path.write_text(f'{{"key": "a", "result": 0.5}}\n{{"key": "b", "result": {result}}}\n', encoding="utf-8")
    times = StepTimes(path)
    assert (times.get("a"), times.get("b")) == (0.5, None)
    assert "times.jsonl: line 2: no step time; simulated again" in capsys.readouterr().err


def test_half_a_last_line_costs_that_line_alone(tmp_path: Path) -> None:
    path = tmp_path / "times.jsonl"
    path.write_text('{"key": "a", "result": 0.5}\n{"ke', encoding="utf-8")
    StepTimes(path).put("b", 0.25)
    again = StepTimes(path)
    assert (again.get("a"), again.get("b")) == (0.5, 0.25)


@pytest.mark.parametrize("text", ["years of work", "years\nof work\n"])
def test_a_file_of_something_else_is_no_cache(tmp_path: Path, text: str) -> None:
    (tmp_path / "thesis.txt").write_text(text)
    with pytest.raises(InputError, match=r"thesis.txt: line 1: no step time of an earlier run"):
        StepTimes(tmp_path / "thesis.txt")
    assert (tmp_path / "thesis.txt").read_text() == text


def test_known_times_are_not_simulated_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    described, _ = describe_rows([_row()])
    times = StepTimes(tmp_path / "times.jsonl")
    (first,) = curves(described, _START, times)
    monkeypatch.setattr("simcore.apps.measured.runs.score.predict_case", lambda *_: math.nan)
    (second,) = curves(described, _START, StepTimes(tmp_path / "times.jsonl"))
    assert np.array_equal(first.log_s, second.log_s)


def test_pieces_are_switched_off_where_a_row_has_them() -> None:
    described, _ = describe_rows([_row(), _row(id="r2", family="b", recompute="full")])
    by_name = {worth.name: worth for worth in ablate(curves(described, _START), _START)}
    assert len(by_name) == len(ABLATIONS) + 2
    (case,) = described[1].band.cases
    without = {ablation.name: ablation.without(case) for ablation in ABLATIONS}
    assert without["nothing recomputed"].training.recompute == "none"
    assert without["unfused attention as if fused"] == case
    (plain,) = described[0].band.cases
    assert without["nothing recomputed"] == plain  # otherwise the rows are the same


def test_a_miss_is_explained_by_its_nearest_case() -> None:
    described, _ = describe_rows([_row(recompute="full")])
    (case,) = described[0].band.cases
    right = simulated_s(case, 1, _START)
    row = RowScore(described[0], right, right)
    (miss,) = explain({"new, tp + DP": row}, _START)
    assert (miss.group, miss.row) == ("new, tp + DP", "r1")
    assert miss.error == pytest.approx(right / described[0].measured_s - 1)
    without = miss.without["nothing recomputed"]
    assert without is not None
    # Forward, backward twice as long, and forward again: without the last, a quarter less of layers' time.
    assert 0.74 < (1 + without) / (1 + miss.error) < 0.9
    assert miss.without["pipelines not interleaved"] is None
    slower = miss.without["no chain of elementwise kernels fused"]
    assert slower is not None
    assert slower > miss.error
    assert miss.without["everything recomputed"] is None
    assert miss.without["GPUs of one type keep one clock"] is None  # _START has no spread
    spread = {"gh100": Sustained(0.8, spread=0.02)}
    (slowed,) = explain({"new, tp + DP": row}, spread)
    assert slowed.error > miss.error
    assert slowed.without["GPUs of one type keep one clock"] == pytest.approx(miss.error)


def test_both_commands_print_families_in_and_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [_row(), _row(id="r2", family="b", value="0.12"), _row(id="r3", family="c", quality="B")]
    rows.append(_row(id="r4", quality="B", global_batch="16"))
    print_runs_fit("gh100", rows, left_out=True, times=StepTimes(tmp_path / "t.jsonl"))
    out = capsys.readouterr().out
    assert "[gh100]  # in use: " in out
    assert "clock = 0.6" in out  # measured far slower than any clock: the end of the range
    assert "mean over families" in out
    with pytest.raises(InputError, match=r"no die 'gh10'.*gh100"):
        print_runs_fit("gh10", rows, left_out=True)
    with pytest.raises(InputError, match="no row of quality A on ga100"):
        print_runs_fit("ga100", rows, left_out=True)
    names = list(_GPT)
    lines = [",".join(names), *(",".join(row.text(name) for name in names) for row in rows)]
    table = tmp_path / "runs.csv"
    table.write_text("\n".join(lines) + "\n", encoding="utf-8")
    page = tmp_path / "docs" / "validation.md"
    searched = [StrategySearch(REFERENCE, {PUBLISHED_BEST: 2.0, "1M16P1D": 0.5})]
    monkeypatch.setattr("simcore.apps.validate.runs.command.search", lambda **_: searched)
    cache = str(tmp_path / "t.jsonl")
    residuals = tmp_path / "residuals.csv"
    with pytest.raises(InputError, match="add --leave-one-out"):
        validate_runs(str(table), residuals=str(residuals))
    validate_runs(
        str(table), page=str(page), cache=cache, leave_one_out=True, sample=1, ablations=1,
        residuals=str(residuals),
    )  # fmt: skip
    written = page.read_text(encoding="utf-8")
    assert "## Families left out" in written
    assert "| all | 4 |" in written.split("## Bands")[1]
    assert "## What each piece is worth" in written
    assert "| no vocabulary head |" in written
    assert "## Where predictions miss" in written  # r2 is far from what it says
    assert "## DistSim's 15 strategies" in written
    assert (tmp_path / "docs" / "images" / "distsim.svg").read_text(encoding="utf-8").startswith("<svg")
    capsys.readouterr()
    one, two, open_row, beside = read_runs(residuals.read_text(encoding="utf-8"))
    # Without r1 the fit sees r2 alone, and without r2 r1 alone: both times at the slowest clock.
    assert (one.id, one.features.tp, one.features.dp, one.features.microbatches) == ("r1", 2, 4, 1)
    assert one.left_out_s > one.predicted_s
    assert one.left_out_s == pytest.approx(two.left_out_s)
    # No fit has seen a row of quality B: it stays as it is.
    assert open_row.left_out_s == pytest.approx(open_row.predicted_s, rel=1e-5)
    # But one whose family is in a fit is simulated by the numbers without it, which r1 has from its curve.
    slower = one.left_out_s / one.predicted_s
    assert beside.left_out_s / beside.predicted_s == pytest.approx(slower, rel=0.05)  # twice the microbatches
    assert all(run.reach is not None for run in (one, two, open_row, beside))


@pytest.mark.parametrize(("gpus", "deviations"), [(1, 0.0), (8, 1.4236), (100, 2.5076), (1000, 3.2414)])
def test_the_slowest_of_more_gpus_is_slower(gpus: int, deviations: float) -> None:
    """Expected least of so many normal draws, from tables of order statistics."""
    held = Sustained(0.8, fp8=0.9, spread=0.02)
    slowest = 0.8 * (1 - 0.02 * deviations)
    assert held.slowest_clock(gpus) == pytest.approx(slowest, rel=5e-4)
    rated = replace(load_gpu("h100-sxm"), sustained=held)
    loaded = rated.under_load(gpus)
    assert loaded.boost_clock_hz / rated.boost_clock_hz == pytest.approx(slowest, rel=5e-4)
    ratios = {mode: peak / rated.peak_flops[mode] for mode, peak in loaded.peak_flops.items()}
    assert ratios["bf16"] == pytest.approx(ratios["fp32"]) == pytest.approx(slowest, rel=5e-4)
    assert ratios["fp8"] == pytest.approx(0.9 * slowest, rel=5e-4)
    assert replace(rated, conditions="cool").under_load(gpus).peak_flops == rated.peak_flops
