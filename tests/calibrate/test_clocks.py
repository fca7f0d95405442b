"""Laws of the clock under load: what they say of steps that were made up, and of one that is simulated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from simcore.calibrate.clocks.command import lines, print_clock_laws
from simcore.calibrate.clocks.laws import (
    LAWS,
    Row,
    constant,
    mean_power,
    mean_power_when_busy,
    products_by_power,
    products_only,
    step_s,
)
from simcore.calibrate.clocks.points import POINTS, Done, Measured
from simcore.calibrate.clocks.watts import print_watts
from simcore.calibrate.runs_score import Described
from simcore.errors import InputError
from workloads.published import RunRow, describe

_GPT = {
    "id": "r1", "family": "new", "model": "GPT-3 tiny", "layers": "2", "hidden": "1024", "heads": "16",
    "kv_heads": "16", "ffn": "4096", "vocab": "51200", "seq": "1024", "gpus": "8", "gpu_type": "H100",
    "tp": "2", "pp": "1", "global_batch": "8", "micro_batch": "2", "precision": "bf16", "sp": "yes",
    "recompute": "none", "metric": "step_time_s", "value": "0.1", "quality": "A",
}  # fmt: skip


def _step(idle_s: float, products_s: float) -> Measured:
    """A step with so many seconds of products at the rated clock, at 772 Tflop/s."""
    seconds = {name: idle_s + products_s / clocks[0] for name, clocks in POINTS.items()}
    return Measured(seconds, Done(772e12 * products_s, 0.0, 0.0, products_s / 0.85, 0.0, 0.0))


def _row(idle_s: float, products_s: float, family: str = "new", measured_s: float = 1.0) -> Row:
    row = RunRow(2, {**_GPT, "family": family})
    at = _step(idle_s, products_s)
    return Row(Described(row, describe(RunRow(2, _GPT)), measured_s, 1.0, ""), at, at)


def test_time_that_a_clock_touches_goes_with_its_inverse() -> None:
    at = _step(idle_s=1.0, products_s=3.0)
    assert step_s(at, np.array([0.75]), np.ones(1), np.ones(1))[0] == pytest.approx(1 + 3 / 0.75)
    row = _row(1.0, 3.0)
    assert constant(row, np.array([0.6]))[0] == pytest.approx(1 + 3 / 0.6)
    assert products_only(row, np.array([0.6]))[0] == pytest.approx(1 + 3 / 0.6)


def test_a_step_with_idle_time_has_a_higher_clock_only_if_power_is_averaged_over_it() -> None:
    one, scale = _row(0.0, 1.0), np.array([1.0])
    half = _row(1.0, 1.0)
    # With half of the time idle, mean power is below the limit at the rated clock: 1 + 1 s.
    assert mean_power(half, scale)[0] == pytest.approx(2.0)
    assert mean_power(one, scale)[0] > 1.05
    busy = mean_power_when_busy(half, scale)[0] - 1
    assert busy == pytest.approx(mean_power_when_busy(one, scale)[0])
    # Products alone at the limit settle where the microbenchmarks do: 0.78 of 0.9017 of the peak.
    assert products_by_power(one, scale)[0] == pytest.approx(0.9017 / 0.78, rel=1e-3)


def test_the_table_finds_the_clock_that_made_the_rows() -> None:
    rows = [_row(0.0, 1.0, family, 1 / 0.8) for family in ("a", "b")]
    table = lines(rows)
    assert len(table) == 2 + len(LAWS) + 2
    # One clock: 0.8 fits both families, and each family by the other; there is no other die.
    assert table[2].split()[-4:] == ["0.800", "0.00", "0.00", "nan"]


def test_a_run_is_simulated_at_every_point_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, cache = [RunRow(2, _GPT)], tmp_path / "clocks.jsonl"
    print_clock_laws(rows, 1, cache)
    first, kept = capsys.readouterr().out, cache.read_text()
    assert len(kept.splitlines()) == 1
    print_clock_laws(rows, 1, cache)
    assert capsys.readouterr().out == first
    assert cache.read_text() == kept


def test_watts_say_what_is_at_the_limit_and_how_power_grows_with_the_clock(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kernels, limits = tmp_path / "kernels.csv", tmp_path / "limits.csv"
    # 2 * 8192 ** 3 flop at 0.9017 of 989.4 Tflop/s last 1.23 ms and more; 1.5 ms is some 1.2 times as long.
    kernels.write_text(
        "gpu,op,dtype,m,n,k,time_us,power_w,power_limit_w,power_window_s_min\n"
        "H200-SXM,gemm,bfloat16,8192,8192,8192,1500,690,700,1.0\n"
        "H200-SXM,attention,bfloat16,,,,1500,450,700,1.0\n"
        "H200-SXM,attention,bfloat16,,,,15,100,700,0.1\n"
    )
    # With 50 of 250 W static: a quarter of the power for work at 1 / sqrt(2) of the speed.
    limits.write_text(
        "gpu,dataset,network,batch_size,optimizer,power_limit_w,time_per_epoch_s,average_gpu_power_w\n"
        "V100,squad,bert,8,adamw,250,1.0,250\nV100,squad,bert,8,adamw,100,1.4142,100\n"
    )
    print_watts(str(kernels), str(limits))
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[-3:] for line in out if line.startswith("H200")] == [
        ["1", "450", "0%"], ["1", "690", "100%"],
    ]  # fmt: skip
    assert 1.1 < float(next(line for line in out if line.startswith("up to")).split()[-1]) < 1.25
    # (250 - 50) / (100 - 50) = 4 = sqrt(2) ** 4.
    assert float(out[-1].split()[-2]) == pytest.approx(4.0, abs=0.01)
    with pytest.raises(InputError, match="missing column"):
        print_watts(str(limits), str(limits))
