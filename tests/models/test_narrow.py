"""Products in 8 and 4 bits: what is cast, read and kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from tests.models.known import MIXTRAL_8X7B
from workloads.models.build import model_pieces
from workloads.models.local import Shard
from workloads.models.pieces import KernelLaunch, ModelPiece
from workloads.models.public import named_model
from workloads.models.software import SoftwareSpec
from workloads.models.spec import ModelSpec

SEQ = 4096
LLAMA = named_model("llama3-8b")
assert isinstance(LLAMA, ModelSpec)
FP4 = "float4_e2m1fn_x2"


def layer(precision: str, model: ModelSpec = LLAMA, **software: object) -> ModelPiece:
    shard = Shard(1, SEQ, precision=precision, software=SoftwareSpec.model_validate(software))
    return model_pieces(model, shard).layers[0]


def products(kernels: Sequence[KernelLaunch]) -> Counter[str]:
    return Counter(k.dtype for k in kernels if k.op_class in ("gemm", "bgemm"))


def test_every_product_of_a_layer_is_in_four_bits() -> None:
    found = layer("nvfp4")
    assert products(found.forward) == {FP4: 4}
    assert products(found.backward) == {FP4: 8}
    assert {k.name for k in found.forward if k.op_class == "gemm"} == {"nvfp4_gemm"}
    # Attention stays in 16 bits.
    assert {k.dtype for k in found.forward if k.op_class == "attention_fwd"} == {"bfloat16"}


def test_four_bit_operands_are_found_and_cast_in_both_orders() -> None:
    """A maximum over the tensor, then a cast for each order: 2 bytes read, 9 of 16 written."""
    found = layer("nvfp4", fp8_weight_cast="never")
    casts = [k for k in found.forward if "nvfp4" in k.name and not k.op_class.endswith("gemm")]
    names = ("amax_nvfp4", "cast_nvfp4", "cast_transpose_nvfp4")
    assert Counter(k.name for k in casts) == dict.fromkeys(names, 4)
    hidden, first = LLAMA.hidden, casts[:3]
    assert [k.bytes_read for k in first] == [SEQ * hidden * 2, SEQ * hidden * 2 + 4, SEQ * hidden * 2 + 4]
    assert [k.bytes_written for k in first] == [4, SEQ * hidden * 9 // 16, SEQ * hidden * 9 // 16]


def test_what_is_kept_for_backward_is_as_narrow_as_what_is_read() -> None:
    saved = {precision: layer(precision).saved_bytes for precision in ("bf16", "fp8", "nvfp4")}
    assert saved["bf16"] > saved["fp8"] > saved["nvfp4"]
    # Half a byte and a scale of a sixteenth, where fp8 keeps one byte of each input.
    inputs = saved["bf16"] - saved["fp8"]
    assert saved["fp8"] - saved["nvfp4"] == pytest.approx(inputs * 7 / 16, rel=1e-3)


def test_experts_are_in_four_bits_too() -> None:
    found = layer("nvfp4", MIXTRAL_8X7B)
    assert {k.dtype for k in found.forward if k.op_class == "bgemm"} == {FP4}


def test_attention_in_fp8_casts_what_it_reads() -> None:
    plain, narrow = (layer("fp8", fp8_recipe="mxfp8", fp8_attention=on) for on in (False, True))
    for kernels, op_class in ((narrow.forward, "attention_fwd"), (narrow.backward, "attention_bwd")):
        assert {k.dtype for k in kernels if k.op_class == op_class} == {"float8_e4m3fn"}
    assert len(narrow.forward) == len(plain.forward) + 1
    assert len(narrow.backward) == len(plain.backward) + 1
    in_16_bits = layer("bf16", fp8_attention=True)
    assert {k.dtype for k in in_16_bits.forward if k.op_class == "attention_fwd"} == {"bfloat16"}


def test_experts_products_gate_and_cast_what_they_write() -> None:
    """Two products forward and the cast of what comes; backward no kernel stands between them either."""
    apart, fused = (layer("fp8", MIXTRAL_8X7B, fp8_recipe="mxfp8", moe_fused_mlp=on) for on in (False, True))

    def inside(kernels: Sequence[KernelLaunch]) -> list[str]:
        return [k.name for k in kernels if ".experts" in k.module]

    assert inside(fused.forward) == ["cast_transpose_fp8_mxfp8", "grouped_gemm", "grouped_gemm"]
    casts = [name for name in inside(fused.backward) if name.startswith("cast")]
    assert len(casts) == 1
    assert "swiglu_bwd" not in inside(fused.backward)
    assert len(inside(apart.forward)) == len(inside(fused.forward)) + 2
    first = next(k for k in fused.forward if k.module.endswith("linear_fc1") and k.op_class == "bgemm")
    rows, width = 2 * SEQ, MIXTRAL_8X7B.moe.ffn if MIXTRAL_8X7B.moe else 0
    # Both halves in bf16, kept for backward, and the gated product in fp8 in two orders.
    assert first.bytes_written == rows * (2 * width * 2 + width * 2)
    assert fused.saved_bytes == apart.saved_bytes


def test_the_output_layer_is_in_fp8_where_it_is_said() -> None:
    def dtypes(**software: object) -> set[str]:
        shard = Shard(1, SEQ, precision="fp8", software=SoftwareSpec.model_validate(software))
        head = model_pieces(LLAMA, shard).head
        return {k.dtype for k in head.forward if k.op_class == "gemm"}

    assert dtypes() == {"bfloat16"}
    assert dtypes(fp8_head=True) == {"float8_e4m3fn"}


def test_beside_products_in_fp8_weights_and_activations_are_what_is_said() -> None:
    def head(beside: str) -> ModelPiece:
        software = SoftwareSpec.model_validate({"fp8_beside": beside, "cross_entropy": "in_place"})
        return model_pieces(LLAMA, Shard(1, SEQ, precision="fp8", software=software)).head

    narrow, wide = layer("fp8"), layer("fp8", fp8_beside="fp32")
    assert products(wide.forward) == products(narrow.forward) == {"float8_e4m3fn": 4}
    assert wide.output_bytes == 2 * narrow.output_bytes
    # Logits in fp32 are turned into the softmax where they are, those in 16 bits are copied first.
    copies = [k for k in head("bf16").forward if k.name == "aten::_to_copy" and k.module == "loss"]
    assert [k.out_shapes for k in copies] == [((SEQ, LLAMA.vocab),)]
    assert not [k for k in head("fp32").forward if k.name == "aten::_to_copy" and k.module == "loss"]
