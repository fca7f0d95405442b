"""Frozen parameters, adapters, forward alone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.models.known import LLAMA3_8B, MIXTRAL_8X7B
from workloads.models import ModelPiece, ModelPieces, ModelSpec
from workloads.models.build import model_pieces
from workloads.models.local import Shard

SMALL = LLAMA3_8B.model_copy(update={"layers": 4})


def pieces(model: ModelSpec = SMALL, **shard: Any) -> ModelPieces:
    return model_pieces(model, Shard(1, 2048, **shard))


def flops(piece: ModelPiece, *, weights: bool) -> int:
    return sum(k.flops for k in piece.backward if k.weight_gradient == weights and not k.recomputed)


def test_backward_is_two_products_for_each_of_forward() -> None:
    piece = pieces().layers[0]
    products = sum(k.flops for k in piece.forward if k.op_class == "gemm")
    attention = sum(k.flops for k in piece.forward if k.op_class == "attention_fwd")
    assert flops(piece, weights=True) == products
    assert flops(piece, weights=False) == products + attention * 5 // 2


def test_forward_only() -> None:
    for piece in pieces(trainable="none").all_pieces:
        assert piece.backward == () and piece.saved_bytes == 0
        assert not any(parameter.trainable for parameter in piece.parameters)
    whole, forward = pieces(), pieces(trainable="none", recompute="full")
    assert [k.name for k in forward.layers[0].forward] == [k.name for k in whole.layers[0].forward]
    assert forward.model_flops_per_sample == pytest.approx(whole.model_flops_per_sample / 3)


def test_only_the_head_trains() -> None:
    made = pieces(trainable=r"^output_layer")
    assert made.embedding.backward == () and all(layer.backward == () for layer in made.layers)
    assert all(layer.saved_bytes == 0 for layer in made.layers)
    # Nothing before the output layer trains: its input needs no gradient.
    gemms = [k for k in made.head.backward if k.op_class == "gemm"]
    assert [k.weight_gradient for k in gemms] == [True]


def test_gradients_flow_back_to_the_first_layer_that_trains() -> None:
    made = pieces(trainable=r"layers\.2\.(self_attention|mlp)")
    assert [len(layer.backward) > 0 for layer in made.layers] == [False, False, True, True]
    assert flops(made.layers[3], weights=True) == 0 < flops(made.layers[3], weights=False)
    first, frozen = made.layers[2], made.layers[3]
    # The first projection of the layer that trains needs no gradient of its input; behind it all is whole.
    qkv = 2 * 2048 * 4096 * (32 + 2 * 8) * 128
    assert flops(first, weights=False) == flops(pieces().layers[0], weights=False) - qkv
    assert frozen.saved_bytes < first.saved_bytes
    assert {p.name.split(".")[3] for p in first.parameters if not p.trainable} == {
        "input_layernorm", "pre_mlp_layernorm"
    }  # fmt: skip


def test_adapters() -> None:
    rank, h = 16, 4096
    made, whole = pieces(trainable="lora", lora_rank=rank), pieces()
    layer = made.layers[1]
    trained = {p.name.split(".", 3)[-1]: p.numel for p in layer.parameters if p.trainable}
    widths = {
        "self_attention.linear_qkv": (h, 48 * 128), "self_attention.linear_proj": (h, h),
        "mlp.linear_fc1": (h, 2 * 14336), "mlp.linear_fc2": (14336, h),
    }  # fmt: skip
    expected = {
        f"{name}.lora_{part}.weight": rank * width
        for name, pair in widths.items()
        for part, width in zip("ab", pair, strict=True)
    }
    assert trained == expected
    low = 2 * 2048 * sum(expected.values())
    assert flops(layer, weights=True) == low
    assert flops(layer, weights=False) == flops(whole.layers[1], weights=False) + low
    # In the first layer the input of the first adapter needs none.
    base_and_down = 2 * 2048 * (h * 48 * 128 + h * rank)
    assert flops(made.layers[0], weights=False) == flops(layer, weights=False) - base_and_down
    # Adapters need the inputs that frozen weights do not, and what is between them.
    narrow = 2 * 2048 * rank * 4
    assert layer.saved_bytes == whole.layers[1].saved_bytes + narrow


def test_adapters_of_some_layers() -> None:
    made = pieces(trainable="lora", lora_rank=8, lora_targets="linear_qkv")
    names = {p.name.split(".")[-3] for layer in made.layers for p in layer.parameters if p.trainable}
    assert names == {"linear_qkv"}


@pytest.mark.parametrize("tp", [2, 4])
def test_adapters_with_tensor_and_sequence_parallelism(tp: int) -> None:
    made = pieces(trainable="lora", lora_rank=16, tp=tp, sequence_parallel=True)
    layer = made.layers[1]
    exchanged = [k.collective for k in layer.forward if k.collective]
    assert exchanged == ["all_gather", "reduce_scatter"] * 2
    # Frozen bases need no second gather of their input.
    back = [k.collective for k in layer.backward if k.collective]
    assert back == ["all_gather", "reduce_scatter"] * 2
    assert all(p.tp_duplicated for p in layer.parameters if p.trainable)


def test_frozen_experts() -> None:
    made = pieces(MIXTRAL_8X7B.model_copy(update={"layers": 2}), trainable=r"router|attention")
    layer = made.layers[0]
    assert not any(p.trainable for p in layer.parameters if p.group == "expert_dp")
    assert not any("grouped_wgrad" in k.name for k in layer.backward)
    assert sum(k.name == "grouped_gemm" for k in layer.backward) == 2
