"""Parameters of models, against published counts."""

from __future__ import annotations

import pytest

from tests.models.known import COUNTS, GPT3, MIXTRAL_8X7B
from workloads.models import ModelPiece, ModelSpec
from workloads.models.build import model_pieces
from workloads.models.local import Shard
from workloads.models.public import named_model
from workloads.models.software import SoftwareSpec

PLAIN = SoftwareSpec(vocab_multiple=1)


def num_parameters(model: ModelSpec, **shard: int) -> int:
    pieces = model_pieces(model, Shard(1, 4096, software=PLAIN, **shard), one_stage=True).all_pieces  # type: ignore[arg-type]
    return sum(parameter.numel for piece in pieces for parameter in piece.parameters)


def of(piece: ModelPiece) -> dict[str, int]:
    return {parameter.name.split(".", 3)[-1]: parameter.numel for parameter in piece.parameters}


@pytest.mark.parametrize("name", sorted(COUNTS))
def test_published_count(name: str) -> None:
    model, expected = COUNTS[name]
    assert num_parameters(model) == expected


def test_gpt3_is_174_6_billion() -> None:
    assert num_parameters(GPT3) == pytest.approx(174.6e9, rel=1e-3)


def test_tensor_parallel_ranks_share_all_but_norms_and_biases_of_sums() -> None:
    layer = model_pieces(GPT3, Shard(1, 2048, tp=8, software=PLAIN)).layers[0]
    h = 12288
    assert of(layer) == {
        "input_layernorm.weight": h, "input_layernorm.bias": h,
        "self_attention.linear_qkv.weight": 3 * h * h // 8, "self_attention.linear_qkv.bias": 3 * h // 8,
        "self_attention.linear_proj.weight": h * h // 8, "self_attention.linear_proj.bias": h,
        "pre_mlp_layernorm.weight": h, "pre_mlp_layernorm.bias": h,
        "mlp.linear_fc1.weight": 4 * h * h // 8, "mlp.linear_fc1.bias": 4 * h // 8,
        "mlp.linear_fc2.weight": 4 * h * h // 8, "mlp.linear_fc2.bias": h,
    }  # fmt: skip


def test_experts_are_dealt_to_expert_parallel_ranks() -> None:
    whole, part = (
        model_pieces(MIXTRAL_8X7B, Shard(1, 2048, ep=ep, software=PLAIN)).layers[0] for ep in (1, 4)
    )
    experts = [sum(p.numel for p in piece.parameters if p.group == "expert_dp") for piece in (whole, part)]
    assert experts == [8 * 3 * 4096 * 14336, 2 * 3 * 4096 * 14336]


def test_a_tied_weight_is_on_both_ends_of_a_pipeline_and_once_on_one_stage() -> None:
    apart, together = (
        model_pieces(GPT3, Shard(1, 2048, software=PLAIN), one_stage=one_stage) for one_stage in (False, True)
    )
    words = apart.embedding.parameters[0].numel
    assert (
        sum(p.numel for p in apart.head.parameters) - sum(p.numel for p in together.head.parameters) == words
    )


def test_layers_of_further_tokens_look_up_a_copy_of_the_embedding_on_the_last_stage() -> None:
    # DeepSeek-V3's output layer has a weight of its own, so that the copy is the layer's alone.
    without = named_model("deepseek-v3")
    assert isinstance(without, ModelSpec) and not (without.mtp_layers or without.tied_embeddings)
    model = without.model_copy(update={"mtp_layers": 1})
    apart, together = (
        model_pieces(model, Shard(1, 4096, software=PLAIN), one_stage=one_stage)
        for one_stage in (False, True)
    )
    own = {p.name: p.numel for p in apart.head.parameters}
    for parameter in together.head.parameters:
        assert own.pop(parameter.name) == parameter.numel
    assert list(own.values()) == [apart.embedding.parameters[0].numel]
    plain = model_pieces(without, Shard(1, 4096, software=PLAIN)).head
    assert not any("tied" in p.name for p in plain.parameters)
