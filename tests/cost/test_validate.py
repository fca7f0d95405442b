from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from simcore.apps.fit.kernels import fit_gemm
from simcore.apps.measured.kernels import COLUMNS, KernelRow, predict_rows, read_kernel_rows
from simcore.cost import KernelShape, RooflineCost
from simcore.cost.parameters import load_parameters
from simcore.errors import InputError
from simcore.hardware import load_gpu
from tests.commands import simcore


def write(path: Path, *rows: dict[str, object]) -> str:
    lines = [",".join(COLUMNS), *(",".join(str(row.get(name, "")) for name in COLUMNS) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


GEMM = {"gpu": "A100-SXM-80GB", "op": "gemm", "dtype": "bfloat16", "m": 4096.0, "n": 4096, "k": 4096}
ATTENTION = {
    "gpu": "H100-SXM5-80GB", "op": "attention FA2", "dtype": "fp16/bf16", "batch": 4, "seq": 4096,
    "heads": 16, "head_dim": 128, "causal": 0.0, "pass": "fwd", "tflops": 368.0,
}  # fmt: skip


def test_json_has_rows_families_overall_and_refused_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(
        tmp_path / "kernels.csv",
        {**GEMM, "time_us": 540.0},
        ATTENTION,
        {**GEMM, "gpu": "TPU v5p", "time_us": 1.0},
        {**GEMM, "op": "MoE dispatch", "time_us": 1.0},
        {**GEMM, "m": -1, "time_us": 1.0},
        {**GEMM, "time_us": "nan"},
    )
    assert simcore("validate", "--kernels", path, "--json") == 0
    table = json.loads(capsys.readouterr().out)
    assert [row["id"] for row in table["rows"]] == [2, 3]
    first, second = table["rows"]
    assert first["measured"] == 540.0
    assert first["error"] == pytest.approx(first["predicted"] / 540.0 - 1)
    # 4 * 4 * 16 * 4096^2 * 128 = 5.4976e11 flops at 368 Tflop/s: 1493.9 us.
    assert second["measured"] == pytest.approx(1493.9, rel=1e-4)
    assert [row["id"] for row in table["skipped"]] == [4, 5, 6, 7]
    assert table["overall"]["n"] == 2
    assert set(table["families"]) == {
        "gemm bfloat16 a100-80 < 1000 us",
        "attention FA2 fwd h100-sxm >= 1000 us",
    }
    # Both within the accuracy that the constants' fit reached on such rows.
    assert table["overall"]["max"] < 0.15


def test_a_missing_file_or_column_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simcore("validate", "--kernels", str(tmp_path / "none.csv")) == 2
    (tmp_path / "bad.csv").write_text("gpu,op\n")
    assert simcore("calibrate", "hopper", "--kernels", str(tmp_path / "bad.csv")) == 2
    message = capsys.readouterr().err
    assert "none.csv" in message
    assert "no column 'dtype'" in message


def test_fit_finds_constants_that_made_the_rows(tmp_path: Path) -> None:
    # Rows timed by the H100's own constants on a chip half as efficient: the fit sees twice the math time.
    cost = RooflineCost(load_gpu("h100-sxm"))
    made = []
    for size in (2048, 3072, 4096):
        for depth in (512, 2048, 8192):
            row = {**GEMM, "gpu": "H100-SXM-80GB", "m": size, "n": size, "k": depth}
            shapes = ((size, depth), (depth, size)), ((size, size),)
            kernel = KernelShape("gemm", "gemm", "bfloat16", *shapes, replayed=True)
            made.append({**row, "time_us": 1e6 * cost.seconds(kernel) * 1.3})
    rows, skipped = read_kernel_rows(write(tmp_path / "made.csv", *made))
    assert not skipped
    before = max(abs(p / row.seconds - 1) for p, row in zip(predict_rows(rows), rows, strict=True))
    assert before == pytest.approx(1 - 1 / 1.3)
    constants, error = fit_gemm(load_parameters("hopper"), rows, rounds=1)
    assert error < 0.05
    assert 0 < constants["efficiency"] <= 1


def test_fit_needs_rows_of_the_generation() -> None:
    with pytest.raises(InputError, match="no bf16 GEMM row of a volta GPU"):
        fit_gemm(load_parameters("volta"), list[KernelRow]())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"m": 0}, "m = 0 is not a dimension"),
        ({"k": -4}, "negative"),
        ({"n": 2.5}, "whole number"),
        ({"k": ""}, "not a number"),
        ({"dtype": "int3"}, "unknown dtype"),
        ({"time_us": 0}, "time_us = 0 is not from 0.01 to 1e+09 us"),
        ({"time_us": "1e-308"}, "time_us = 1e-308 is not from 0.01 to 1e+09 us"),
        ({"time_us": "inf"}, "time_us = 'inf' is not a number"),
        ({"m": "1e300"}, "m = 1e+300 is not a dimension"),
        ({"time_us": "", "tflops": ""}, "not a number"),
        ({"op": "grouped gemm", "groups": 0}, "groups = 0"),
    ],
)
def test_bad_rows_are_refused_with_their_reason(
    tmp_path: Path, change: dict[str, object], reason: str
) -> None:
    rows, skipped = read_kernel_rows(write(tmp_path / "rows.csv", {**GEMM, "time_us": 500.0, **change}))
    assert not rows
    assert reason in skipped[0]["reason"]


def test_a_grouped_product_is_its_groups_in_one_launch(tmp_path: Path) -> None:
    grouped = {
        **GEMM,
        "gpu": "H800-SXM",
        "op": "grouped gemm fp8",
        "dtype": "fp8->bf16",
        "m": 256,
        "groups": 8,
    }
    (row,), _ = read_kernel_rows(write(tmp_path / "rows.csv", {**grouped, "time_us": 60.0}))
    (kernel,) = row.kernels
    assert kernel.flops == 8 * 2 * 256 * 4096**2
    one = replace(
        kernel, op_class="gemm", in_shapes=((256, 4096), (4096, 4096)), out_shapes=((256, 4096),), flops=0
    )
    cost = RooflineCost(load_gpu("h800"))
    # Eight at once waste no more at the ends of waves than eight after another, and start once.
    assert cost.seconds(kernel) < 8 * cost.seconds(one)


def test_unfused_attention_counts_its_flops_as_published(tmp_path: Path) -> None:
    row = {**ATTENTION, "op": "attention PyTorch", "pass": "fwd+bwd", "causal": 1.0, "tflops": 61.0}
    (found,), _ = read_kernel_rows(write(tmp_path / "rows.csv", row))
    # Half of 3.5 * 4 * 4 * 16 * 4096^2 * 128 flops at 61 Tflop/s; the products do all of them.
    assert found.seconds == pytest.approx(1.75 * 4 * 4 * 16 * 4096**2 * 128 / 61e12)
    assert sum(kernel.flops for kernel in found.kernels) == 6 * 2 * 4 * 16 * 4096**2 * 128


def test_reasons_of_refused_rows_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = [{**GEMM, "m": -size, "time_us": 1.0} for size in range(1, 8)]
    path = write(tmp_path / "kernels.csv", {**GEMM, "m": 0, "time_us": 1.0}, *bad, *bad[:1])
    assert simcore("validate", "--kernels", path) == 0
    shown = capsys.readouterr().out
    assert "refused: 9 rows" in shown
    assert "2 from line 3: m = -1 is negative" in shown
    assert "and 3 more reasons (--json has all)" in shown


def test_absurd_rows_leave_the_others_and_the_json_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    absurd = [{**GEMM, "time_us": time} for time in ("inf", "nan", "1e-308", "-1")]
    path = write(tmp_path / "kernels.csv", {**GEMM, "time_us": 500.0}, *absurd)
    assert simcore("validate", "--kernels", path, "--json") == 0
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert (found["overall"]["n"], [row["id"] for row in found["skipped"]]) == (1, [3, 4, 5, 6])


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (b"H100-SXM,gemm\n", "line 3: 2 values; the first line names"),
        (b"\xff\n", "line 3, byte [0-9,]+: no UTF-8"),
    ],
)
def test_short_rows_and_bytes_that_are_no_text_are_refused(tmp_path: Path, row: bytes, reason: str) -> None:
    path = Path(write(tmp_path / "kernels.csv", {**GEMM, "time_us": 500.0}))
    path.write_bytes(path.read_bytes() + row)
    with pytest.raises(InputError, match=rf"kernels\.csv: {reason}"):
        read_kernel_rows(path)


def test_rows_that_were_repeated_for_a_second_are_held_at_the_power_limit(tmp_path: Path) -> None:
    size = {
        "gpu": "B200-SXM-180GB",
        "op": "gemm",
        "dtype": "bfloat16",
        "m": 4096,
        "n": 4096,
        "k": 8192,
        "time_us": 200,
    }
    notes = (
        "CUDA graph replay",
        "CUDA graph replay; sustained 1 s",
        "CUDA graph replay; weights cycled beyond L2",
    )
    rows, refused = read_kernel_rows(write(tmp_path / "k.csv", *({**size, "notes": said} for said in notes)))
    assert not refused and [row.sustained for row in rows] == [False, True, False]
    burst, held, cycled = predict_rows(rows)
    assert 1.1 < held / burst < 1.25
    # 64 MiB of activations stay in an L2 of 126 MB, and products are longer than what they read.
    assert rows[2].kernels[0].warm_bytes > 0 and cycled == pytest.approx(burst, rel=0.02)


def test_quantising_is_taken_off_and_windows_are_as_wide_as_the_notes_say(tmp_path: Path) -> None:
    size = {"gpu": "GB200", "op": "gemm", "m": 4096, "n": 4096, "k": 8192, "time_us": 200, "notes": ""}
    said = {
        "fp8": "per-tensor fp8; includes dynamic quantisation",
        "nvfp4": "nvfp4 block 16; includes activation quantisation",
    }
    windowed = {
        "gpu": "GB200", "op": "attention", "dtype": "bfloat16", "batch": 1, "seq": 16384, "heads": 16,
        "head_dim": 128, "causal": 1, "pass": "fwd", "time_us": 500, "notes": "sliding window 128",
    }  # fmt: skip
    path = write(tmp_path / "k.csv", *({**size, "dtype": d, "notes": n} for d, n in said.items()), windowed)
    rows, refused = read_kernel_rows(path)
    assert not refused
    assert [row.around_s for row in rows[:2]] == pytest.approx(
        [1.25e-5 + 2 * 4096 * 8192 / 1.79e12, 2.97e-6 + 2 * 4096 * 8192 / 3.19e12]
    )
    (kernel,) = (kernel for kernel in rows[2].kernels if kernel.op_class == "attention_fwd")
    assert kernel.in_shapes[1][2] == 128


def test_a_layer_of_experts_is_the_kernels_of_one_rank(tmp_path: Path) -> None:
    notes = "whole fused-MoE op; topk=8 experts=128 ep=4 tp=2; distribution={}; deepgemm; sustained"
    layer: dict[str, object] = {
        "gpu": "GB200", "op": "moe grouped gemm layer", "dtype": "fp8_block", "m": 4096, "n": 768, "k": 2048,
        "groups": 32, "time_us": 400, "notes": notes.format("balanced"),
    }  # fmt: skip
    table = write(tmp_path / "k.csv", layer, {**layer, "notes": notes.format("power_law_1.2")})
    (row,), (refused,) = read_kernel_rows(table)
    assert "power_law_1.2" in refused["reason"]
    assert row.family == "experts fp8_block deepgemm gb200"
    # 4,096 tokens x 8 / 4 ranks are 8,192, 256 for each of 32 experts, through gate, up and down.
    products = [kernel for kernel in row.kernels if kernel.op_class == "bgemm"]
    assert [kernel.out_shapes for kernel in products] == [((32, 256, 1536),), ((32, 256, 2048),)]
    assert sum(kernel.flops for kernel in products) == 6 * 8192 * 2048 * 768
    (plain,), _ = read_kernel_rows(
        write(tmp_path / "n.csv", {**layer, "notes": notes.format("balanced") + " non-gated"})
    )
    assert sum(kernel.flops for kernel in plain.kernels) == 4 * 8192 * 2048 * 768
