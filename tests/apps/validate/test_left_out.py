"""Constants carried to a GPU whose rows are not in the fit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simcore.apps.measured.kernels import KernelRow
from simcore.apps.validate.left_out import carried, left_out_errors
from simcore.cost import KernelShape, RooflineCost
from simcore.cost.parameters import load_parameters
from simcore.hardware import load_gpu
from tests.cost.toys import TOY, TOY_ATTENTION, TOY_GPU, with_gemm


def row(gpu: str, dtype: str = "bfloat16", line: int = 2) -> KernelRow:
    kernel = KernelShape("gemm", "gemm", dtype, ((4096, 4096), (4096, 4096)), ((4096, 4096),), 2 * 4096**3)
    return KernelRow(line, gpu, "gemm", (kernel,), 500e-6, 0.0, {"op": "gemm"})


def test_latencies_are_cycles_and_the_start_includes_the_gap() -> None:
    constants = with_gemm(epilogue_s=2e-6, tile_latency_s=1e-6, prologue_s=3e-6, multicast=2, efficiency=0.7)
    fast = replace(TOY_GPU, boost_clock_hz=2e9, kernel_gap_s=0.5e-6)
    moved = carried(constants, TOY_GPU, TOY, fast).tensor
    # Twice the clock: half the time.  Start and gap, 3 + 1 us, become 2 us, of which the new gap is 0.5 us.
    assert moved.epilogue_s == pytest.approx(1e-6)
    assert moved.tile_latency_s == pytest.approx(0.5e-6)
    assert moved.prologue_s == pytest.approx(1.5e-6)
    # Shares come along; what the target is known to do stays its own.
    assert moved.efficiency == 0.7
    assert moved.multicast == TOY.tensor.multicast


def test_the_only_fitted_gpu_of_a_generation_is_predicted_from_another() -> None:
    alone = left_out_errors([row("a100-80"), row("h100-sxm", line=3)])
    assert {found["id"] for found in alone.rows} == {2, 3}
    # Constants of the same generation, fitted on H100, are what an H800 is always predicted with.
    other = left_out_errors([row("h100-sxm"), row("h800", "float8_e4m3fn", 3)])
    assert [found["id"] for found in other.rows] == [3]
    assert load_gpu("h800").generation == "hopper"


def test_another_gpu_of_the_generation_is_fitted_anew() -> None:
    made = []
    for gpu, slower in (("gb200", 1.3), ("b200-sxm", 1.0)):
        cost = RooflineCost(load_gpu(gpu), parameters=load_parameters("blackwell"))
        for size in (2048, 4096, 8192):
            for depth in (1024, 4096):
                shapes = ((size, depth), (depth, size))
                kernel = KernelShape(
                    "gemm",
                    "gemm",
                    "bfloat16",
                    shapes,
                    ((size, size),),
                    2 * size * size * depth,
                    replayed=True,
                )
                seconds = slower * cost.seconds(kernel)
                made.append(KernelRow(len(made), gpu, "gemm", (kernel,), seconds, 0.0, {"op": "gemm"}))
    found = left_out_errors(made, rounds=1)
    # As slow as what the others measured, not as what it measured itself.
    errors = [row["error"] for row in found.rows if row["family"] == "gemm b200-sxm"]
    assert len(errors) == 6 and sum(errors) / 6 == pytest.approx(0.3, abs=0.1)


def test_a_gpu_that_no_fit_has_seen_is_predicted_as_always() -> None:
    kept = left_out_errors([row("h100-sxm"), row("h200", line=3)])
    assert [found["id"] for found in kept.rows] == [3]


def test_without_another_fitted_gpu_there_is_nothing_to_carry() -> None:
    assert not left_out_errors([row("a100-80")]).rows


def test_how_attention_is_written_stays_the_targets_own() -> None:
    # A toy whose warps share operands among 16 rows, to one whose warpgroups share them among 64.
    narrow = replace(TOY, attention={"trtllm": replace(TOY_ATTENTION, operand_rows=16, overlap_loss=0.7)})
    wide = replace(TOY, attention={"trtllm": replace(TOY_ATTENTION, operand_rows=64, overlap_loss=0.2)})
    moved = carried(narrow, TOY_GPU, wide, TOY_GPU).attention["trtllm"]
    assert (moved.operand_rows, moved.overlap_loss) == (64, 0.7)
