"""What is special about each family: heads, cross-attention, patches, experts, windows, fp8."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from simcore.errors import InputError
from tests.models.known import BERT_LARGE, DEEPSEEK_V3, GPT3, LLAMA3_8B, MIXTRAL_8X7B, T5_11B, VIT_L
from workloads.models import KernelLaunch, ModelPieces, ModelSpec, MoeSpec
from workloads.models.build import model_pieces
from workloads.models.check import check_model
from workloads.models.dispatch import rank_load, routed_tokens
from workloads.models.local import Shard
from workloads.models.pieces import HOST_SYNC
from workloads.models.software import SoftwareSpec

SEQ = 512


def pieces(model: ModelSpec, *, software: dict[str, Any] | None = None, **shard: Any) -> ModelPieces:
    return model_pieces(model, Shard(2, SEQ, software=SoftwareSpec(**(software or {})), **shard))


def exchanged(kernels: tuple[KernelLaunch, ...]) -> list[tuple[str, str, int]]:
    return [(k.collective, k.group, k.num_bytes) for k in kernels if k.collective]


def test_bert_attends_both_ways_and_has_two_losses() -> None:
    made = pieces(BERT_LARGE)
    assert "flash2_attention_full_fwd" in {k.name for k in made.layers[0].forward}
    modules = [k.module for k in made.head.forward if k.op_class == "gemm"]
    assert modules == ["lm_head.dense", "output_layer", "pooler.dense", "binary_head"]


def test_t5_hands_the_encoders_output_through_the_decoder() -> None:
    made = pieces(T5_11B, decoder_seq=128)
    encoder, first, middle, last = (made.layers[k] for k in (0, 24, 25, 47))
    one_token = 1024 * 2 * 2  # hidden, bf16, samples
    assert encoder.output_bytes == SEQ * one_token
    assert first.output_bytes == middle.output_bytes == (SEQ + 128) * one_token
    assert last.output_bytes == 128 * one_token
    crossed = {k.module.split(".")[-1]: k.out_shapes[0] for k in middle.forward
               if "cross_attention.linear" in k.module}  # fmt: skip
    width = 128 * 128
    assert crossed == {
        "linear_q": (2 * 128, width), "linear_kv": (2 * SEQ, 2 * width), "linear_proj": (2 * 128, 1024)
    }  # fmt: skip
    attention = [k.in_shapes[:2] for k in middle.forward if k.op_class == "attention_fwd"]
    assert attention == [((2, 128, 128, 128), (2, 128, 128, 128)), ((2, 128, 128, 128), (2, 128, SEQ, 128))]
    assert any(k.name == "aten::embedding" for k in first.forward)
    assert len({id(layer) for layer in made.layers}) == 4  # encoder; first, middle and last of the decoder


def test_vit_has_a_class_token_and_one_row_of_classes() -> None:
    made = pieces(VIT_L)
    assert made.layers[0].output_shape == (2 * 197, 1024)
    patch = next(k for k in made.embedding.forward if k.op_class == "gemm")
    assert patch.in_shapes == ((2 * 196, 3 * 16 * 16), (3 * 16 * 16, 1024))
    assert [k.out_shapes for k in made.head.forward if k.op_class == "gemm"] == [((2, 1000),)]
    # The images need no gradient.
    assert all(k.weight_gradient for k in made.embedding.backward if k.op_class == "gemm")


def test_windows_make_kinds_of_layers() -> None:
    model = LLAMA3_8B.model_copy(update={"sliding_window": 128, "global_every": 4})
    layers = pieces(model).layers
    assert [layer is layers[3] for layer in layers[:8]] == [False, False, False, True] * 2
    local, whole = (next(k for k in layers[i].forward if k.op_class == "attention_fwd") for i in (0, 3))
    # 128 keys a row but for the first rows: 128 - 128^2 / 2 / 512 = 112.
    assert local.flops == whole.flops * 112 // SEQ


@pytest.mark.parametrize(("ep", "etp"), [(1, 1), (4, 1), (2, 2)])
def test_dispatch(ep: int, etp: int) -> None:
    tp = 2
    layer = pieces(MIXTRAL_8X7B, ep=ep, etp=etp, tp=tp, sequence_parallel=True).layers[0]
    sent = 2 * SEQ // tp * 2 * 4096 * 2  # tokens of a slice, twice, bf16
    wanted = Counter[tuple[str, str, int]]()
    if ep > 1:
        wanted["all_to_all", "ep", sent] += 2
    if etp > 1:
        wanted["all_gather", "etp", sent * etp] += 1
        wanted["reduce_scatter", "etp", sent * etp] += 1
    # Before rows are sent all ranks learn how many: 8 counts of 8 bytes from each.
    counts = Counter({("all_gather", "ep", ep * 8 * 8): 1} if ep > 1 else {})
    for kernels, small in ((layer.forward, counts), (layer.backward, Counter[tuple[str, str, int]]())):
        assert Counter(call for call in exchanged(kernels) if call[1] != "tp") == wanted + small
    grouped = [k for k in layer.forward if k.name == "grouped_gemm"]
    tokens = 2 * SEQ // tp * 2 * etp
    assert grouped[0].in_shapes == (
        (8 // ep, tokens // (8 // ep), 4096), (8 // ep, 4096, 2 * 14336 // etp)
    )  # fmt: skip


def test_capacities_pad_and_loads_do_not() -> None:
    dropless = MoeSpec(num_experts=8, top_k=2, ffn=64)
    assert routed_tokens(dropless, 1000) == 2000
    assert routed_tokens(dropless.model_copy(update={"capacity_factor": 1.25}), 1000) == 8 * 313
    skewed = dropless.model_copy(update={"load": 3.0})
    # Alone on its rank the fullest expert has 3 x the mean; beside another (8 - 3) / 7 of it more.
    assert rank_load(skewed, 8) == 3.0
    assert rank_load(skewed, 4) == pytest.approx((3 + 5 / 7) / 2)
    assert rank_load(skewed, 1) == pytest.approx(1.0)


def test_latent_attention_and_shared_experts() -> None:
    layers = pieces(DEEPSEEK_V3).layers
    assert [layer is layers[0] for layer in layers[:5]] == [True] * 3 + [False] * 2
    widths = {
        k.module.rsplit(".", 1)[-1]: k.out_shapes[0][-1] for k in layers[0].forward if k.op_class == "gemm"
    }
    assert widths == {
        "linear_q_down_proj": 1536, "linear_q_up_proj": 128 * 192, "linear_kv_down_proj": 512 + 64,
        "linear_kv_up_proj": 128 * 256, "linear_proj": 7168, "linear_fc1": 2 * 18432, "linear_fc2": 7168,
    }  # fmt: skip
    assert any("shared_experts" in k.module for k in layers[3].forward)


@pytest.mark.parametrize("recipe", ["delayed", "current", "blockwise", "mxfp8"])
def test_fp8(recipe: str) -> None:
    made = pieces(LLAMA3_8B, precision="fp8", tp=2, sequence_parallel=True, software={"fp8_recipe": recipe})
    wide = pieces(LLAMA3_8B, tp=2, sequence_parallel=True)
    layer = made.layers[0]
    gathers = [
        [k.num_bytes for k in piece.forward if k.collective == "all_gather"]
        for piece in (layer, wide.layers[0])
    ]
    assert [2 * size for size in gathers[0]] == gathers[1]  # a byte an element, gathered after the cast
    names = Counter(k.name for k in layer.forward)
    assert names["amax_fp8"] == (4 if recipe == "current" else 0)
    assert names[{"blockwise": "blockwise_gemm", "mxfp8": "mxfp8_gemm"}.get(recipe, "aten::_scaled_mm")] == 4
    assert sum("cast_transpose_fp8" in k.name for k in layer.first_forward) == 4  # a weight each
    shared = [k for k in made.head.first_forward if k.collective]
    assert len(shared) == (1 if recipe == "delayed" else 0)
    assert layer.saved_bytes < wide.layers[0].saved_bytes


def test_separate_projections_gather_once() -> None:
    apart = pieces(
        LLAMA3_8B, tp=2, sequence_parallel=True, software={"fused_qkv": False, "fused_gate_up": False}
    )
    together = pieces(LLAMA3_8B, tp=2, sequence_parallel=True)
    one, other = apart.layers[0], together.layers[0]
    assert exchanged(one.forward) == exchanged(other.forward)
    assert sum(k.flops for k in one.forward) == sum(k.flops for k in other.forward)
    assert sum(k.op_class == "gemm" for k in one.forward) == 7


@pytest.mark.parametrize("sums", ["splits", "copies"])
def test_asynchronous_tensor_parallelism_moves_exchanges_beside_products(sums: str) -> None:
    made = pieces(
        LLAMA3_8B, tp=2, sequence_parallel=True, tp_overlap=True, software={"tp_overlap_sums": sums}
    )
    for kernels in (made.layers[0].forward, made.layers[0].backward):
        for position, kernel in enumerate(kernels):
            if kernel.collective and kernel.stream == "tp":
                # What waits for it comes behind the product that it runs beside.
                waiting = [k for k, other in enumerate(kernels) if position in other.waits_for]
                assert all(k > position + 1 for k in waiting)
                assert (kernel.op_class == "copy_engine") == (
                    kernel.collective == "all_gather" or sums == "copies"
                )
    # Behind its product comes the last of four parts of a sum, or an addition of what was copied.
    hidden, tokens = 4096, made.layers[0].output_shape[0] * 2
    forward = made.layers[0].forward
    behind = [k.num_bytes for k in forward if k.collective and k.stream == "compute"]
    added = [k.bytes_written for k in forward if k.name == "sum_of_parts"]
    whole = 2 * tokens * hidden
    assert (behind, added) == (([whole // 4] * 2, []) if sums == "splits" else ([], [whole // 2] * 2))


def test_what_is_gathered_in_fp8_is_cast_once_and_turned_behind_the_gather() -> None:
    """Projections apart: one cast of the slice for three products; a whole fp8 tensor read and written."""
    made = pieces(
        LLAMA3_8B, tp=2, sequence_parallel=True, precision="fp8",
        software={"fused_qkv": False, "fused_gate_up": False, "fp8_recipe": "current"},
    )  # fmt: skip
    layer, hidden = made.layers[0], 4096
    slices = [k for k in layer.forward if k.name == "cast_fp8"]
    tokens = layer.output_shape[0] * 2
    assert [k.bytes_written for k in slices] == [tokens // 2 * hidden] * 2
    assert {k.dtype for k in layer.forward if k.collective == "all_gather"} == {"float8_e4m3fn"}
    # The inputs of both blocks, and the gradients of both their outputs.
    turned = [k.bytes_read + k.bytes_written for k in layer.backward if k.name == "transpose_fp8"]
    assert turned == [2 * tokens * hidden] * 4


def test_clamped_experts_wait_for_the_host_and_again_when_they_run_again() -> None:
    """GPT-OSS: a wait for sizes and one for the offset of a half; the latter is in what is recomputed."""
    moe = MoeSpec(num_experts=8, top_k=2, ffn=512, bias=True, clamp=True)
    model = LLAMA3_8B.model_copy(update={"layers": 1, "bias": True, "moe": moe})
    software = {"moe_clamp_apart": True, "moe_launch_each": True}

    def layer(**shard: Any) -> tuple[Counter[str], Counter[str]]:
        made = pieces(model, ep=4, software=software, **shard).layers[0]
        return Counter(k.name for k in made.forward), Counter(k.name for k in made.backward)

    forward, backward = layer()
    assert (forward[HOST_SYNC], backward[HOST_SYNC]) == (2, 0)
    assert (forward["aten::clamp"], backward["aten::where"], forward["swiglu_fwd"]) == (2, 2, 1)
    forward, backward = layer(recompute="selective", recompute_modules=("moe_act",))
    assert (forward[HOST_SYNC], backward[HOST_SYNC]) == (2, 1)
    assert backward["aten::clamp"] == 2
    # Two experts on a rank: the gradient of each one's two biases is added for itself.
    made = pieces(model, ep=4, software=software).layers[0]
    added = [k.launches for k in made.backward if k.accumulates and "experts" in k.module and k.launches > 1]
    assert added == [2, 2]


def test_softmax_by_reductions_moves_what_was_recorded_of_xla() -> None:
    """GPT 126M, 4 sequences of 2,048 on one A100 (NVIDIA/JAX-Toolbox test data, pax_fsdp4), MB a kernel."""
    small = GPT3.model_copy(update={"layers": 1, "hidden": 768, "heads": 12, "ffn": 3072})
    software = SoftwareSpec(attention="unfused", softmax_fusion="reductions")
    layer = model_pieces(small, Shard(4, 2048, software=software)).layers[0]

    def moved(kernels: tuple[KernelLaunch, ...]) -> list[int]:
        return [round((k.bytes_read + k.bytes_written) / 1e6) for k in kernels if "softmax" in k.name]

    # Scores are 4 x 12 x 2048 x 2048 in bf16, 402.7 MB; recorded: 403, 403, 806 and 807, 1209.
    assert moved(layer.forward) == [403, 403, 806]
    assert moved(layer.backward) == [806, 1209]  # the former's sums in fp32 are small


@pytest.mark.parametrize("fused", [False, True])
def test_rows_with_scales_of_their_own_are_gathered_first_and_cast_for_each_product(fused: bool) -> None:
    made = pieces(
        LLAMA3_8B, tp=2, sequence_parallel=True, precision="fp8",
        software={"fused_qkv": fused, "fused_gate_up": fused, "fp8_recipe": "rowwise"},
    )  # fmt: skip
    layer, hidden, ffn = made.layers[0], 4096, 14336
    tokens = layer.output_shape[0] * 2
    assert {k.dtype for k in layer.forward if k.collective == "all_gather"} == {"bfloat16"}
    cast = [k for k in layer.forward if k.name == "cast_fp8_rows"]
    # Inputs of both blocks and of both their last products, whole; a byte an element and a scale a row.
    widths = (hidden, hidden // 2, hidden, ffn // 2)
    assert [k.bytes_written for k in cast] == [tokens * width + 4 * tokens for width in widths]
    # For weight gradients each product's input and the gradient of its output, a shared input once; for
    # input gradients its weight.
    products = 4 if fused else 7
    turned = [k for k in layer.backward if k.op_class == "transpose"]
    assert len(turned) == 4 + products + products
    assert sum(k.name == "amax_fp8_columns" for k in layer.backward) == len(turned)
    assert not any(k.collective and k.num_bytes == 4 for k in (*layer.forward, *layer.backward))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"hidden": 100},
            "model.hidden: 100 is no multiple of heads 32; nearest: 96 or 128, or heads=25 or 50",
        ),
        ({"kv_heads": 5}, "model.heads: 32 is no multiple of kv_heads 5; nearest: 30 or 35"),
        ({"moe": {"num_experts": 4, "top_k": 8, "ffn": 64}}, "model.moe.top_k: 8 of 4 experts; nearest: 4"),
        (
            {"moe": {"num_experts": 8, "top_k": 4, "ffn": 64, "num_groups": 4, "top_groups": 1}},
            "model.moe.top_groups: 4 experts from 1 of 4 groups of 2; nearest: 2",
        ),
        (
            {"moe": {"num_experts": 8, "top_k": 4, "ffn": 64, "num_groups": 3, "top_groups": 2}},
            "model.moe.num_experts: 8 is no multiple of num_groups 3; nearest: 6 or 9",
        ),
        ({"family": "t5"}, "model.decoder_layers: family 't5' needs decoder layers"),
        ({"family": "vit", "positions": "none"}, "model.image_size: missing; a ViT needs it"),
        ({"vocab": 0}, "model.vocab: missing; family 'llama' needs it"),
    ],
)
def test_dimensions_that_do_not_fit(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        check_model(ModelSpec(**{**LLAMA3_8B.model_dump(exclude_none=True), **change}))
    assert str(error.value).startswith(message)


def test_a_product_may_add_its_bias() -> None:
    apart, within = (
        pieces(BERT_LARGE, software={"bias_in_product": fused}).layers[0] for fused in (False, True)
    )
    names = [Counter(k.name for k in layer.forward) for layer in (apart, within)]
    assert names[0] - names[1] == {"aten::add.Tensor": 1}  # queries, keys and values; others are fused
    assert len(apart.backward) == len(within.backward)


def test_repeated_keys_reach_attention_for_every_head() -> None:
    made = pieces(LLAMA3_8B, software={"repeat_keys": True}).layers[0]
    (attention,) = [k for k in made.forward if k.op_class == "attention_fwd"]
    assert attention.in_shapes[0][1] == attention.in_shapes[1][1] == 32
    copies = [k for k in made.forward if k.name == "aten::repeat_interleave"]
    assert [k.bytes_written // k.bytes_read for k in copies] == [4, 4]


@pytest.mark.parametrize(
    ("style", "compiled", "passes"),
    # Bytes per element of bf16: 2 read and 4 written by the cast, 4 and 4 by the product, 4 and 2 back; with
    # matrices a product of twice the elements and their sum; halves move 2 + 4 + 6 + 6 + 6.
    [("complex", 3, 20), ("matrices", 1, 4), ("halves", 1, 4)],
)
def test_rotations_move_what_their_steps_read_and_write(style: str, compiled: int, passes: int) -> None:
    def steps(fused: bool):
        software = {"rope_style": style, "rope_fusion": fused}
        layer = pieces(LLAMA3_8B, software=software).layers[0]
        names = [k.name for k in layer.forward]
        start = next(k for k, name in enumerate(names) if "mm" in name) + 1
        stop = next(k for k, kernel in enumerate(layer.forward) if kernel.op_class == "attention_fwd")
        return layer.forward[start:stop]

    tokens, heads = pieces(LLAMA3_8B).layers[0].output_shape[0], 32 + 8
    elements = tokens * heads * 128
    fused, eager = steps(True), steps(False)
    assert (len(fused), sum(k.bytes_read + k.bytes_written for k in fused)) == (
        2 * compiled, passes * elements
    )  # fmt: skip
    moved = {"complex": 20, "matrices": 6 + 12 + 12 + 6, "halves": 2 + 4 + 6 + 6 + 6}[style]
    assert sum(k.bytes_read + k.bytes_written for k in eager) == moved * elements
