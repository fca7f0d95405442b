"""Hardware beyond what kernels were fitted on moves times as physics says, and is not called fitted."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simcore.apps.main import app
from simcore.cost import ORIGINS, RooflineCost
from simcore.cost.kernel import KernelShape
from simcore.hardware import load_gpu

#: A large product and a kernel that streams; the first's time is its flops', the second's its bytes'.
PRODUCT = KernelShape(
    "aten::mm", "gemm", "bfloat16", ((8192, 8192), (8192, 8192)), ((8192, 8192),), flops=2 * 8192**3,
    bytes_read=2 * 2 * 8192**2, bytes_written=2 * 8192**2,
)  # fmt: skip
STREAM = KernelShape(
    "aten::add", "elementwise", "bfloat16", ((1 << 28,), (1 << 28,)), ((1 << 28,),),
    bytes_read=1 << 30, bytes_written=1 << 29,
)  # fmt: skip


def seconds(kernel: KernelShape, **settings: str) -> float:
    given = {f"gpu.{key.replace('__', '.')}": text for key, text in settings.items()}
    return RooflineCost(load_gpu("h100-sxm", given, force=True)).seconds(kernel)


@pytest.mark.parametrize(
    ("settings", "product", "stream"),
    [
        ({"peak_flops__bf16": "494.5Tflop/s"}, 2.0, 1.0),  # half the rate
        ({"peak_flops__bf16": "1978Tflop/s"}, 0.5, 1.0),  # twice the rate, which no Hopper has
        ({"peak_flops__bf16": "3956Tflop/s"}, 0.25, 1.0),
        ({"num_sms": "66"}, 2.0, 1.0),  # half of the GPU
        ({"num_sms": "264"}, 0.5, 1.0),
        ({"num_sms": "264", "peak_flops__bf16": "989Tflop/s"}, 1.0, 1.0),  # twice as many, each half as fast
        ({"clock": "0.5"}, 2.0, 1.0),
        ({"hbm_bytes_per_s": "1.676TB/s"}, 1.0, 2.0),
    ],
)
def test_large_products_go_with_their_rate(settings: dict[str, str], product: float, stream: float) -> None:
    assert seconds(PRODUCT, **settings) / seconds(PRODUCT) == pytest.approx(product, rel=0.1)
    assert seconds(STREAM, **settings) / seconds(STREAM) == pytest.approx(stream, rel=0.05)


@pytest.mark.parametrize(
    ("settings", "origins"),
    [
        ({}, ("fitted", "fitted")),
        ({"gpu.peak_flops.bf16": "494Tflop/s"}, ("fitted", "fitted")),
        ({"gpu.peak_flops.bf16": "1978Tflop/s"}, ("extrapolated", "fitted")),
        ({"gpu.num_sms": "264"}, ("extrapolated", "extrapolated")),
        ({"gpu.clock": "0.8"}, ("fitted", "fitted")),
    ],
)
def test_what_no_fitted_gpu_has_is_not_called_fitted(
    settings: dict[str, str], origins: tuple[str, str]
) -> None:
    cost = RooflineCost(load_gpu("h100-sxm", settings))
    found = tuple(ORIGINS[cost._price(kernel, is_copy=False)[-1]] for kernel in (PRODUCT, STREAM))
    assert found == origins


def test_a_board_of_ones_own_moves_the_answer_and_warns(tmp_path: Path) -> None:
    folder = resources.files("hardware_profiles")
    board = (folder / "gpu/h100-sxm.toml").read_text(encoding="utf-8")
    twice = board.replace("bf16 = { value = 989", "bf16 = { value = 1978")
    assert twice != board
    (tmp_path / "mine.toml").write_text(twice)
    steps = {}
    for name in ("h100-sxm", str(tmp_path / "mine.toml")):
        words = ["run-sim", "llama3-8b", "--cluster", "h100-8", "--set", f"cluster.gpu={name}"]
        words += ["--set", "model.layers=2", "--set", "parallel.tp=2", "--set", "training.global_batch=8"]
        result = CliRunner().invoke(
            app, [*words, "--json", "--no-perfetto", "--out", str(tmp_path / "out"), "--force"]
        )
        assert result.exit_code == 0, result.output
        steps[name] = json.loads(result.stdout)
    plain, mine = steps.values()
    # Two thirds of the step are products, which take half the time.
    assert 0.5 < mine["step_time_s"] / plain["step_time_s"] < 0.75
    assert any(
        "is extrapolated: kernels were fitted on GPUs of generation hopper" in w for w in mine["warnings"]
    )
    assert not any("extrapolated" in warning for warning in plain["warnings"])
