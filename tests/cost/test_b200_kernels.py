"""Kernels of training as measured on one B200 (docs/validation-kernels.md)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from simcore.apps.measured.kernels import KernelRow, held_at_the_limit, predict_row, read_kernel_rows
from simcore.cost import RooflineCost
from simcore.cost.parameters import load_parameters
from simcore.hardware import load_gpu

ROWS, REFUSED = read_kernel_rows(Path(__file__).parent / "b200_training_kernels.csv")
B200 = load_gpu("b200-sxm")
PARAMETERS = load_parameters(B200.table("cost"))


def errors(rows: Iterable[KernelRow], cost: RooflineCost) -> list[float]:
    return [predict_row(row, cost) / row.seconds - 1 for row in rows]


def test_backward_of_attention_is_as_measured() -> None:
    assert not REFUSED and len(ROWS) == 660
    backward = [
        row
        for row in ROWS
        if row.columns["pass"] == "bwd" and float(row.columns["seq"]) == 4096
    ]  # fmt: skip
    for dim, most in (("128", 0.04), ("160", 0.06)):  # 160: DeepSeek's, queries of 192 and values of 128
        found = errors(
            (row for row in backward if row.columns["head_dim"] == dim),
            RooflineCost(B200, parameters=PARAMETERS),
        )
        assert len(found) >= 4 and fmean(map(abs, found)) < most


def test_one_number_of_this_board_is_what_its_products_differ_by() -> None:
    """Held at its limit it multiplies at 0.79 of the rate of the B200 that the profile's number is from."""
    long = [row for row in ROWS if row.columns["op"] == "gemm" and row.seconds > 1e-3]
    held = held_at_the_limit(PARAMETERS)
    as_known = errors(long, RooflineCost(B200, parameters=held))
    own = replace(B200, gemm_efficiency=0.79 * B200.gemm_efficiency)
    with_its_rate = errors(long, RooflineCost(own, parameters=held))
    assert len(long) > 200
    assert fmean(as_known) == pytest.approx(-0.21, abs=0.02)
    assert fmean(map(abs, with_its_rate)) < 0.05


def test_weight_gradients_are_read_and_written_where_they_are_added() -> None:
    for dtype, size in (("fp32", 4), ("bf16", 2)):
        kernel = next(row for row in ROWS if f"added to {dtype}" in row.columns["notes"]).kernels[0]
        *groups, m, n = kernel.out_shapes[0]
        assert "accum" in kernel.name  # a sum is read as well: the cost doubles what is written
        assert kernel.bytes_written == size * m * n * (groups or [1])[0]
