"""Each kind of kernel that a training step launches, by generation: priced, monotone, never above peak."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from simcore.cost import KernelShape, RooflineCost
from simcore.cost.classify import classify
from simcore.cost.kernel import ELEMENT_BYTES, Shape, numel
from simcore.hardware import load_gpu

BF16, FP8, FP32 = "bfloat16", "float8_e4m3fn", "float32"
HIDDEN = 2048


def product(name: str, dtype: str, op_class: str = "gemm", batch: int = 0) -> Callable[[int], KernelShape]:
    """Tokens x hidden by hidden x 4 hidden; of each member of ``batch`` (experts, heads)."""

    def of(tokens: int) -> KernelShape:
        lead = (batch,) if batch else ()
        shapes = ((*lead, tokens, HIDDEN), (*lead, HIDDEN, 4 * HIDDEN)), ((*lead, tokens, 4 * HIDDEN),)
        flops = 2 * max(1, batch) * tokens * HIDDEN * 4 * HIDDEN
        return KernelShape(name, op_class, dtype, *shapes, flops=flops)

    return of


def attention(
    family: str, *, backward: bool = False, kv_heads: int = 16, dim: int = 128
) -> Callable[[int], KernelShape]:
    def of(tokens: int) -> KernelShape:
        query, key = (1, 16, tokens, dim), (1, kv_heads, tokens, dim)
        name = f"{family}_scaled_dot_product_attention_full"
        if backward:
            return KernelShape(
                f"{name}_bwd", "attention_bwd", BF16, (query, query, key, key), (query, key, key)
            )
        return KernelShape(f"{name}_fwd", "attention_fwd", BF16, (query, key, key), (query,))

    return of


def streaming(
    name: str, reads: int, writes: int, *, width: int = HIDDEN, dtype: str = BF16, out_width: int = 0
) -> Callable[[int], KernelShape]:
    """``reads`` and ``writes`` tensors of tokens x width."""

    def of(tokens: int) -> KernelShape:
        inputs, outputs = (tokens, width), (tokens, out_width or width)
        return KernelShape(name, classify(name), dtype, (inputs,) * reads, (outputs,) * writes)

    return of


def convolution(name: str) -> Callable[[int], KernelShape]:
    """3 x 3 over 56 x 56 pixels and 256 channels; "tokens" are images."""

    def of(images: int) -> KernelShape:
        image, weight = (images, 256, 56, 56), (256, 256, 3, 3)
        backward = "backward" in name
        flops = (2 if backward else 1) * 2 * numel(image) * 256 * 9
        inputs = (image, image, weight) if backward else (image, weight)
        return KernelShape(
            name, "conv", "float16", inputs, (image, weight) if backward else (image,), flops=flops
        )

    return of


def embedding(name: str, op_class: str) -> Callable[[int], KernelShape]:
    def of(tokens: int) -> KernelShape:
        rows: Shape = (tokens, HIDDEN)
        table = (32000, HIDDEN)
        moved = 2 * numel(rows) * ELEMENT_BYTES[BF16]
        if op_class == "embedding_fwd":
            return KernelShape(
                name,
                op_class,
                BF16,
                (table, (tokens,)),
                (rows,),
                bytes_read=moved // 2,
                bytes_written=moved // 2,
            )
        return KernelShape(
            name, op_class, BF16, (rows, (tokens,)), (table,), bytes_read=moved, bytes_written=moved
        )

    return of


@dataclass(frozen=True)
class Case:
    """``of(tokens)`` is the kernel; ``gpus`` those whose generation has it; ``mode`` its unit of math."""

    of: Callable[[int], KernelShape]
    gpus: tuple[str, ...] = ("v100", "a100-80", "h100-sxm")
    mode: str = ""
    fp32_math: str = "ieee"


AMPERE_ON, HOPPER = ("a100-80", "h100-sxm"), ("h100-sxm",)
CASES = {
    "gemm bf16": Case(product("aten::mm", BF16), AMPERE_ON, "bf16"),
    "gemm fp32": Case(product("aten::mm", FP32), mode="fp32"),
    "gemm tf32": Case(product("aten::mm", FP32), AMPERE_ON, "tf32", "tf32"),
    "gemm fp8": Case(product("aten::_scaled_mm", FP8), HOPPER, "fp8"),
    "gemm fp8, scales by block": Case(product("blockwise_gemm", FP8), HOPPER, "fp8"),
    "batched": Case(product("aten::bmm", BF16, "bgemm", 8), AMPERE_ON, "bf16"),
    "grouped": Case(product("grouped_gemm", BF16, "bgemm", 8), AMPERE_ON, "bf16"),
    "weight gradient": Case(product("wgrad_gemm_accum", BF16), AMPERE_ON, "bf16"),
    "flash2": Case(attention("flash2"), AMPERE_ON, "bf16"),
    "flash2 backward": Case(attention("flash2", backward=True), AMPERE_ON, "bf16"),
    "flash2, shared keys": Case(attention("flash2", kv_heads=2), AMPERE_ON, "bf16"),
    "flash3": Case(attention("flash3"), HOPPER, "bf16"),
    "flash3 backward": Case(attention("flash3", backward=True), HOPPER, "bf16"),
    "cudnn, heads of 64": Case(attention("cudnn", dim=64), HOPPER, "bf16"),
    "heads of 256": Case(attention("flash2", dim=256), AMPERE_ON, "bf16"),
    "convolution": Case(convolution("aten::convolution"), mode="fp16"),
    "convolution backward": Case(convolution("aten::convolution_backward"), mode="fp16"),
    "layer norm": Case(streaming("aten::native_layer_norm", 1, 1)),
    "layer norm backward": Case(streaming("aten::native_layer_norm_backward", 2, 1)),
    "softmax": Case(streaming("aten::_softmax", 1, 1)),
    "softmax backward": Case(streaming("aten::_softmax_backward_data", 2, 1)),
    "fused bias and gelu": Case(streaming("bias_gelu_fwd", 1, 1)),
    "fused bias, dropout, addition": Case(streaming("bias_dropout_add_fwd", 2, 2)),
    "dropout": Case(streaming("aten::native_dropout", 1, 2)),
    "reduction": Case(streaming("aten::sum", 1, 1, out_width=1)),
    "cross entropy": Case(streaming("cross_entropy_loss", 1, 1, width=32000, dtype=FP32)),
    "fused adam": Case(streaming("fused_adam", 4, 4, dtype=FP32)),
    "foreach": Case(streaming("aten::_foreach_add_", 2, 1, dtype=FP32)),
    "copy": Case(streaming("aten::copy_", 1, 1)),
    "transposed copy": Case(streaming("aten::clone", 1, 1)),
    "fill": Case(streaming("aten::zero_", 0, 1)),
    "embedding": Case(embedding("aten::embedding", "embedding_fwd")),
    "embedding gradient": Case(embedding("aten::embedding_dense_backward", "embedding_bwd")),
}  # fmt: skip
SIZES = (1, 16, 128, 129, 1024, 4096, 16384)


def flops_of(kernel: KernelShape) -> float:
    """Multiply-adds of the kernel, 2 each; attention's are full (not causal)."""
    if kernel.op_class.startswith("attention"):
        backward = kernel.op_class.endswith("bwd")
        _, heads, seq, dim = kernel.in_shapes[1 if backward else 0]
        return (10.0 if backward else 4.0) * heads * seq * seq * dim
    return float(kernel.flops)


@pytest.mark.parametrize("name", CASES)
def test_priced_monotone_and_below_peak(name: str) -> None:
    case = CASES[name]
    for gpu_name in case.gpus:
        gpu = load_gpu(gpu_name)
        cost = RooflineCost(gpu, case.fp32_math)
        before = 0.0
        for size in SIZES:
            kernel = case.of(size)
            work, seconds = cost.work(kernel), cost.seconds(kernel)
            where = f"{name} of {size} on {gpu_name}"
            assert kernel.op_class != "other", where
            assert seconds >= work.launches * gpu.kernel_gap_s > 0, where
            assert seconds >= before * (1 - 1e-12), where
            if case.mode:
                assert flops_of(kernel) / seconds <= gpu.peak_flops[case.mode], where
            assert work.hbm_bytes / seconds <= gpu.hbm_bytes_per_s, where
            before = seconds


def test_keys_that_heads_share_save_bytes_and_no_flops() -> None:
    cost = RooflineCost(load_gpu("h100-sxm"))
    own, shared = (cost.work(attention("flash2", kv_heads=heads)(4096)) for heads in (16, 2))
    assert shared.hbm_bytes < own.hbm_bytes
    assert shared.sm_s == own.sm_s


def test_half_the_bytes_an_element_never_takes_longer() -> None:
    cost = RooflineCost(load_gpu("h100-sxm"), "tf32")
    fp8, bf16, tf32, fp32 = (
        RooflineCost(load_gpu("h100-sxm"), math).seconds(product("aten::mm", dtype)(4096))
        for dtype, math in ((FP8, "ieee"), (BF16, "ieee"), (FP32, "tf32"), (FP32, "ieee"))
    )
    assert fp8 < bf16 < tf32 < fp32
    streamed = [cost.seconds(streaming("aten::copy_", 1, 1, dtype=dtype)(16384)) for dtype in (BF16, FP32)]
    assert streamed[0] < streamed[1]
