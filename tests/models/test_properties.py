"""What holds for every model, shard and build."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.known import llama
from workloads.models import MlaSpec, ModelPieces, ModelSpec, MoeSpec
from workloads.models.build import model_pieces
from workloads.models.local import Shard
from workloads.models.recompute import RecomputeModule
from workloads.models.software import SoftwareSpec

BOOLS = st.booleans()
BUILDS = st.builds(
    SoftwareSpec, attention=st.sampled_from(["unfused", "flash2"]), norm_fusion=BOOLS, rope_fusion=BOOLS,
    swiglu_fusion=BOOLS, softmax_fusion=BOOLS, bias_dropout_fusion=BOOLS, bias_activation_fusion=BOOLS,
    grad_accumulation_fusion=BOOLS, fused_qkv=BOOLS, fused_gate_up=BOOLS, moe_grouped_gemm=BOOLS,
    moe_permute_fusion=BOOLS, recompute_early_stop=BOOLS,
    cross_entropy=st.sampled_from(["fused", "jit", "unfused"]), vocab_multiple=st.just(1),
)  # fmt: skip
SIZES: dict[str, Any] = {"layers": 2, "hidden": 256, "heads": 8, "ffn": 512, "vocab": 1024}
MLA = MlaSpec(q_lora_rank=64, kv_lora_rank=64, qk_nope_head_size=32, qk_rope_head_size=16, v_head_size=32)
MODELS = st.sampled_from(
    [
        ModelSpec(**SIZES, dropout=0.1),
        ModelSpec(**SIZES, parallel_block=True, activation="relu"),
        llama(**SIZES, kv_heads=4),
        llama(**SIZES, moe=MoeSpec(num_experts=4, top_k=2, ffn=64, shared_ffn=64)),
        llama(**SIZES, mla=MLA, moe=MoeSpec(num_experts=4, top_k=2, ffn=64)),
    ]
)


@st.composite
def jobs(draw: st.DrawFn) -> tuple[ModelSpec, Shard]:
    tp = draw(st.sampled_from([1, 2, 4]))
    shard = Shard(
        micro_batch=draw(st.sampled_from([1, 2])), seq=128, tp=tp, cp=draw(st.sampled_from([1, 2])),
        ep=draw(st.sampled_from([1, 2])), sequence_parallel=tp > 1 and draw(BOOLS),
        cp_style=draw(st.sampled_from(["ring", "all_gather", "ulysses", "torch"])), software=draw(BUILDS),
        precision=draw(st.sampled_from(["bf16", "fp8", "fp32"])), tp_overlap=draw(BOOLS),
        recompute=draw(st.sampled_from(["none", "selective", "full", "ops"])),
        recompute_modules=tuple(draw(st.lists(st.sampled_from(get_args(RecomputeModule)), unique=True))),
    )  # fmt: skip
    return draw(MODELS), shard


def built(job: tuple[ModelSpec, Shard]) -> ModelPieces:
    return model_pieces(*job)


@settings(max_examples=40)
@given(jobs())
def test_nothing_waits_for_what_comes_later(job: tuple[ModelSpec, Shard]) -> None:
    for piece in built(job).all_pieces:
        for kernels in (piece.forward, piece.backward):
            for position, kernel in enumerate(kernels):
                assert all(source < position for source in kernel.waits_for)
                # Beside the compute stream nothing starts before what was launched ahead of it.
                ahead = any(other.stream == "compute" for other in kernels[:position])
                assert kernel.stream == "compute" or kernel.waits_for or not ahead


@settings(max_examples=40)
@given(jobs())
def test_work_and_memory_are_not_negative(job: tuple[ModelSpec, Shard]) -> None:
    for piece in built(job).all_pieces:
        assert piece.saved_bytes >= 0 and piece.output_bytes > 0
        for kernel in (*piece.forward, *piece.backward):
            assert kernel.flops >= 0 and kernel.num_bytes >= 0 and kernel.saved_bytes >= 0
            assert bool(kernel.collective) == (kernel.num_bytes > 0) == bool(kernel.group)
            if kernel.op_class in ("gemm", "bgemm"):
                assert kernel.flops > 0 and kernel.bytes_read > 0


@settings(max_examples=40)
@given(jobs())
def test_backward_is_twice_the_products_of_forward(job: tuple[ModelSpec, Shard]) -> None:
    model, shard = job
    for piece in built((model, shard)).layers:
        forward = sum(k.flops for k in piece.forward if k.op_class == "gemm" or "grouped" in k.name)
        backward = sum(
            k.flops
            for k in piece.backward
            if not k.recomputed and (k.op_class == "gemm" or "grouped" in k.name)
        )
        assert backward == 2 * forward


@settings(max_examples=40)
@given(jobs())
def test_recomputation_trades_memory_for_work(job: tuple[ModelSpec, Shard]) -> None:
    model, shard = job
    shard = replace(shard, recompute_modules=())
    kept = {
        how: built((model, replace(shard, recompute=how))).layers[0] for how in ("none", "selective", "full")
    }
    assert kept["none"].saved_bytes >= kept["selective"].saved_bytes >= kept["full"].saved_bytes
    work = {how: sum(k.flops for k in piece.backward) for how, piece in kept.items()}
    assert work["none"] <= work["selective"] <= work["full"]
    again = {how: [k for k in piece.backward if k.recomputed] for how, piece in kept.items()}
    assert not again["none"] and again["selective"] and again["full"]
