"""Tables of inference engines' kernels: what of them training launches, in the words of other tables."""

from __future__ import annotations

from math import comb
from pathlib import Path

import pytest

from simcore.apps.measured.kernels import predict_rows, read_kernel_rows
from simcore.apps.measured.nccl import predicted_us, read_nccl_rows, tells_constants
from simcore.apps.validate.nccl import nccl_errors
from simcore.cost.like import parameters_of
from simcore.cost.parameters import load_parameters
from simcore.hardware import load_gpu

COLUMNS = (
    "source", "flags", "op", "gpu", "framework", "framework_version", "kernel_source", "dtype", "m", "n", "k",
    "batch", "q_len", "kv_len", "num_heads", "num_kv_heads", "head_dim", "num_tokens", "hidden", "inter",
    "topk", "num_experts", "moe_tp", "moe_ep", "distribution", "num_gpus", "bytes", "latency_us",
    "latency2_us",
)  # fmt: skip
GEMM = {
    "op": "gemm", "gpu": "B200-SXM-180GB", "framework": "SGLang", "kernel_source": "torch_linear",
    "dtype": "bfloat16", "m": 4096, "n": 4096, "k": 4096, "latency_us": 90,
}  # fmt: skip
PREFILL = {
    "op": "attention_prefill_causal", "gpu": "B200-SXM-180GB", "framework": "TRTLLM", "dtype": "bfloat16",
    "kernel_source": "torch_flow", "batch": 4, "q_len": 4096, "kv_len": 4096, "num_heads": 32,
    "num_kv_heads": 8, "head_dim": 128, "latency_us": 700,
}  # fmt: skip
DEEPEP = {
    "op": "deepep_dispatch_normal", "gpu": "H100-SXM-80GB", "framework": "sglang", "kernel_source": "deepep",
    "num_tokens": 8192, "hidden": 7168, "topk": 6, "num_experts": 384, "num_gpus": 8,
    "flags": "dispatch_sms=20;combine_sms=24", "latency_us": 900, "latency2_us": 1500,
}  # fmt: skip


def write(folder: Path, *rows: dict[str, object]) -> str:
    lines = [",".join(COLUMNS), *(",".join(str(row.get(name, "")) for name in COLUMNS) for row in rows)]
    path = folder / "engines.csv"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_products_and_attention_are_asked_as_training_launches_them(tmp_path: Path) -> None:
    encoder = PREFILL | {"op": "attention_encoder_full", "kernel_source": "flash_attention_v4"}
    rows, refused = read_kernel_rows(write(tmp_path, GEMM, PREFILL, encoder))
    assert not refused
    product, prefill, whole = rows
    assert product.kernels[0].flops == 2 * 4096**3 and product.seconds == pytest.approx(90e-6)
    # TensorRT-LLM's op writes the cache before; FlashAttention 4 in an encoder does not, and masks nothing.
    assert [kernel.op_class for kernel in prefill.kernels] == ["copy", "attention_fwd"]
    assert [kernel.name for kernel in whole.kernels] == ["flash4_scaled_dot_product_attention_full_fwd"]
    assert "SGLang torch_linear" in product.family


def test_weights_of_six_layers_in_turn_stay_in_l2_where_they_fit(tmp_path: Path) -> None:
    # 0.85 of an RTX PRO 6000's 128 MiB: six weights of 3 MB do, of 30 MB do not.
    small = GEMM | {"gpu": "RTX-PRO-6000", "m": 16, "n": 1536, "k": 1024}
    rows, _ = read_kernel_rows(write(tmp_path, small, small | {"n": 15360}))
    fits, beyond = (row.kernels[0] for row in rows)
    assert fits.warm_bytes == 2 * (16 + 1536) * 1024
    assert beyond.warm_bytes == 2 * 16 * 1024
    seconds = predict_rows(rows)
    assert seconds[1] > 15360 / 1536 * (2 * 1024 * 1536 / 1.6e12)  # HBM reads what L2 does not hold
    assert seconds[0] < seconds[1]


def test_vllm_casts_in_one_kernel_and_its_products_in_blocks_were_timed_with_the_host(tmp_path: Path) -> None:
    static = GEMM | {"framework": "VLLM", "dtype": "fp8"}
    (row,), (refused,) = read_kernel_rows(write(tmp_path, static, static | {"dtype": "fp8_block"}))
    cast, product = row.kernels
    assert (cast.bytes_read, cast.bytes_written) == (2 * 4096**2, 4096**2)
    assert product.dtype == "float8_e4m3fn" and row.around_s == 0
    assert "the host was timed" in refused["reason"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"op": "attention_decode"}, "serving alone"),
        ({"kernel_source": "triton"}, "attention of 'triton'"),
        ({"kv_len": 8192}, "no prefill from the start"),
        ({"q_len": 16, "kv_len": 16}, "fewer tokens"),
        ({"op": "all_reduce"}, "--nccl"),
        ({"op": "moe", "dtype": "int4_wo", "moe_ep": 1, "moe_tp": 1, "num_experts": 8, "inter": 8}, "4 bits"),
        ({"op": "moe", "moe_ep": 0}, "moe_ep = '0' is not a whole number"),
        ({"q_len": "many"}, "q_len = 'many'"),
    ],
)
def test_what_only_serving_launches_is_refused(
    tmp_path: Path, change: dict[str, object], reason: str
) -> None:
    rows, (refused,) = read_kernel_rows(write(tmp_path, PREFILL | change))
    assert not rows and reason in refused["reason"]


def test_an_exchange_of_tokens_is_a_dispatch_in_fp8_and_a_combination_in_bf16(tmp_path: Path) -> None:
    path = write(tmp_path, DEEPEP, GEMM)
    rows, (refused,) = read_nccl_rows(path)
    assert "--kernels" in refused["reason"]
    # A token reaches a rank unless none of its 6 experts is among the rank's 48 of 384.
    reached = 8 * (1 - comb(336, 6) / comb(384, 6))
    dispatch, combine = rows
    assert dispatch.collective == f"all_to_all:sms=20,gpus={reached:.4g},rows=7392"
    assert combine.collective == f"all_to_all:sms=24,gpus={reached:.4g},sums=14336"
    assert dispatch.num_bytes == 8192 * 7168 * 33 // 32 and combine.num_bytes == 2 * 8192 * 7168
    assert [row.measured_us for row in rows] == [900, 1500]
    # NVLink of 0.94 x 360 GB/s carries 7/8 of what reaches ranks, and SMs no more than that.
    at_least = dispatch.num_bytes * reached * 7 / 8 / (0.94 * 360e9) * 1e6
    assert predicted_us(rows)[0] > at_least
    table = nccl_errors(path)
    assert table.overall == {"n": 0} and len(table.families) == 2
    assert not any(tells_constants(row) for row in rows)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"flags": ""}, "dispatch_sms=N"),
        ({"topk": 500}, "500 of 384 experts"),
        ({"num_gpus": 7}, "over 7 ranks"),
        ({"hidden": "wide"}, "hidden = 'wide'"),
        ({"gpu": "TPU v5p"}, "no profile"),
        ({"latency_us": "nan"}, "time_us"),
    ],
)
def test_exchanges_that_cannot_be_are_refused(tmp_path: Path, change: dict[str, object], reason: str) -> None:
    rows, (refused,) = read_nccl_rows(write(tmp_path, DEEPEP | change))
    assert not rows and reason in refused["reason"]


def test_experts_over_64_gpus_are_on_16_trays_of_one_domain(tmp_path: Path) -> None:
    tokens = {
        "op": "trtllm_alltoall_alltoall_combine", "gpu": "GB200", "framework": "TRTLLM", "dtype": "nvfp4",
        "kernel_source": "NVLinkTwoSided", "num_tokens": 16384, "hidden": 7168, "topk": 8,
        "num_experts": 256, "moe_ep": 64, "latency_us": 4000,
    }  # fmt: skip
    (row,), _ = read_nccl_rows(write(tmp_path, tokens))
    assert (row.setup.nodes, row.setup.gpus) == (16, 64)
    assert row.num_bytes == 2 * 16384 * 7168  # sums are of 16 bits
    plain = {"op": "alltoall", "gpu": "GB200", "bytes": 1 << 20, "num_gpus": 4, "latency_us": 30}
    (nccl,), _ = read_nccl_rows(write(tmp_path, plain))
    assert nccl.collective == "all_to_all" and nccl.exchange is None


def test_latencies_of_another_generation_last_as_many_cycles() -> None:
    board, known = load_gpu("rtx-pro-6000"), load_parameters("ampere")
    cycles = load_gpu("a100-80").boost_clock_hz / board.boost_clock_hz
    own = parameters_of(board)
    assert own.tensor.epilogue_s == pytest.approx(cycles * known.tensor.epilogue_s)
    assert own.attention["flash2"].block_s == pytest.approx(cycles * known.attention["flash2"].block_s)
    assert own.memory.prologue_s == pytest.approx(cycles * known.memory.prologue_s)
    assert own.tensor.efficiency == known.tensor.efficiency  # shares are the same
    assert parameters_of(load_gpu("a100-80")) == known
