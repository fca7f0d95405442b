"""What a layer keeps for its backward, against Korthikanti et al. (arXiv 2205.05198), section 4.

Their table counts, for 16 bit and dropout, bytes of s b h: attention 11 + 5 a s / h (input of QKV 2, queries
and keys 4, values 2, output 2, mask 1; softmax 2, its dropout's mask 1 and output 2), feed-forward 19 (input
2, input of GELU 8, input of the second product 8, mask 1), inputs of norms 4.  They leave out a mean and a
deviation, fp32, per token and norm.
"""

from __future__ import annotations

from typing import Any

import pytest

from workloads.models import ModelPiece, ModelSpec
from workloads.models.layers import layer
from workloads.models.local import Shard
from workloads.models.software import SoftwareSpec

S, B, H, A = 2048, 2, 4096, 32
GPT = ModelSpec(layers=4, hidden=H, heads=A, ffn=4 * H, vocab=51200, dropout=0.1)
SBH, SCORES = S * B * H, S * S * B * A


def made(*, recompute: Any = "none", attention: str = "unfused", **shard: Any) -> ModelPiece:
    software = SoftwareSpec(attention=attention)
    view = Shard(B, S, precision="fp16", recompute=recompute, software=software, **shard)
    return layer(GPT, view, 0, recompute=recompute)


def statistics(tokens: int) -> int:
    """Mean and deviation of two norms."""
    return 2 * 2 * 4 * tokens


def test_one_rank() -> None:
    assert made().saved_bytes == 34 * SBH + 5 * SCORES + statistics(S * B)


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_tensor_parallelism_leaves_norms_dropouts_and_inputs_whole(tp: int) -> None:
    assert made(tp=tp).saved_bytes == 10 * SBH + 24 * SBH // tp + 5 * SCORES // tp + statistics(S * B)


@pytest.mark.parametrize("tp", [2, 8])
def test_sequence_parallelism_splits_everything(tp: int) -> None:
    piece = made(tp=tp, sequence_parallel=True)
    assert piece.saved_bytes == (34 * SBH + 5 * SCORES + statistics(S * B)) // tp


@pytest.mark.parametrize("tp", [1, 8])
def test_selective_recomputation_forgets_scores(tp: int) -> None:
    piece = made(tp=tp, sequence_parallel=tp > 1, recompute="selective")
    assert piece.saved_bytes == (34 * SBH + statistics(S * B)) // tp
    # What comes back when they run again.
    assert sum(k.saved_bytes for k in piece.forward) - piece.saved_bytes == 5 * SCORES // tp
    again = [kernel.name for kernel in piece.backward if kernel.recomputed]
    assert again == ["aten::baddbmm", "scaled_masked_softmax_fwd", "aten::native_dropout", "aten::bmm",
                     "aten::clone"]  # fmt: skip


def test_single_modules_run_again() -> None:
    """Norms keep two fp32 numbers a token less; the block's products keep nothing but its input (2 s b h)."""
    every = made()
    norms = made(recompute="selective", recompute_modules=("layernorm",))
    assert [k.name for k in norms.backward if k.recomputed] == ["aten::native_layer_norm"] * 2
    assert norms.saved_bytes == every.saved_bytes - statistics(S * B)
    block = made(recompute="selective", recompute_modules=("mlp", "moe"))
    forward = [k for k in block.forward if ".mlp" in k.module]
    assert [k.name for k in block.backward if k.recomputed] == [k.name for k in forward]
    # Of 19 s b h the second product's and GELU's 16 come back; 2 are the input, 1 is the dropout's mask.
    assert block.saved_bytes == every.saved_bytes - 16 * SBH


def test_full_recomputation_keeps_the_input() -> None:
    piece = made(recompute="full")
    assert piece.saved_bytes == 2 * SBH
    assert [k.name for k in piece.backward if k.recomputed] == [k.name for k in piece.forward]


def test_a_fused_kernel_keeps_a_number_a_row_instead_of_scores() -> None:
    rows = 4 * S * B * A
    assert made(attention="cudnn").saved_bytes == 34 * SBH + rows + statistics(S * B)
    # Flash kernels have samples first: of several the projection keeps a copy in order of the tokens.
    assert made(attention="flash2").saved_bytes == (34 + 2) * SBH + rows + statistics(S * B)
    assert B > 1
    # Run again, it needs neither the rows nor another copy of its output, which the projection keeps.
    assert made(attention="flash2", recompute="selective").saved_bytes == 34 * SBH + statistics(S * B)


def test_checkpointing_of_ops_keeps_every_second_product_and_attention() -> None:
    llama = GPT.model_copy(update={"gated": True, "norm": "rmsnorm", "bias": False, "dropout": 0.0})
    software = SoftwareSpec(fused_qkv=False, fused_gate_up=False, norm_fusion=True)
    piece = layer(llama, Shard(B, S, recompute="ops", software=software), 0, recompute="ops")
    # Products: q (kept), k, v (kept), output, gate (kept), up, down (kept): widths h, h, 4h, h are kept.
    rows = 4 * S * B * A
    assert piece.saved_bytes == 2 * SBH + (2 + 2 + 8 + 2) * SBH + (2 * SBH + rows)
    again = [k for k in piece.backward if k.recomputed]
    # Of products k and output and up run again; the sum behind the last one is not needed.
    assert sum(k.op_class == "gemm" for k in again) == 3
    assert not any(k.op_class == "attention_fwd" for k in again)


def test_full_recomputation_keeps_the_outputs_that_are_named() -> None:
    """Rotary Llama: queries, keys and values 3 h, projection h, gate and up 8 h; the down-product's output
    goes into a sum alone, which no gradient needs."""
    llama = GPT.model_copy(
        update={"gated": True, "norm": "rmsnorm", "bias": False, "dropout": 0.0, "positions": "rotary"}
    )
    software = SoftwareSpec(attention="cudnn", norm_fusion=True)

    def kept(*names: Any) -> tuple[int, list[str]]:
        shard = Shard(B, S, recompute="full", recompute_keeps=names, software=software)
        piece = layer(llama, shard, 0, recompute="full")
        again = [k for k in piece.backward if k.recomputed]
        return piece.saved_bytes, [k.module.rpartition(".")[2] or k.name for k in again]

    rows = 4 * S * B * A
    outputs = {"qkv": 6 * SBH, "attention": 2 * SBH + rows, "out": 2 * SBH, "up": 16 * SBH, "down": 0}
    for name, size in outputs.items():
        assert kept(name)[0] == 2 * SBH + size
    between = kept("qkv", "out")
    assert between[0] == 2 * SBH + 8 * SBH
    # Neither product nor rotation of what attention reads, nor its projection, nor the down-product.
    assert between[1] == ["input_layernorm", "core_attention", "0", "pre_mlp_layernorm", "linear_fc1", "mlp"]
    assert kept(*outputs)[1] == ["input_layernorm", "0", "pre_mlp_layernorm", "mlp"]


def test_early_stop_ends_before_the_last_product() -> None:
    plain = GPT.model_copy(update={"dropout": 0.0})
    whole, short = (
        layer(plain, Shard(B, S, software=SoftwareSpec(recompute_early_stop=stop)), 0, recompute="full")
        for stop in (False, True)
    )
    names = [[k.name for k in piece.backward if k.recomputed] for piece in (whole, short)]
    assert names[1] == names[0][: len(names[1])]
    assert names[0][len(names[1]) :] == ["aten::mm", "bias_add_residual"]
    assert whole.saved_bytes == short.saved_bytes == 2 * SBH
