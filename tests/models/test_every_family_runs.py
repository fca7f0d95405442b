"""Every family, spread every way that it can be, is a graph that verifies and runs to its end."""

from __future__ import annotations

from typing import Any

import pytest

from simcore.errors import InputError
from simcore.graph import verify
from tests.models.known import llama
from tests.parallel.jobs import step
from workloads.models import MlaSpec, ModelSpec, MoeSpec
from workloads.models.software import SoftwareSpec
from workloads.parallel.generate import generate
from workloads.parallel.spec import ParallelSpec, TrainingSpec

SIZES: dict[str, Any] = {"layers": 4, "hidden": 256, "heads": 8, "ffn": 512}
TOKENS: dict[str, Any] = {**SIZES, "vocab": 1000}
MODELS = {
    "gpt": ModelSpec(**TOKENS, dropout=0.1),
    "llama": llama(**TOKENS, kv_heads=2, qk_norm="head", sliding_window=64, global_every=2),
    "parallel": ModelSpec(**TOKENS, parallel_block=True, positions="alibi", embedding_norm=True),
    "deepseek": llama(
        **TOKENS, mtp_layers=1, moe=MoeSpec(num_experts=4, top_k=2, ffn=128, shared_ffn=128, first_layer=1),
        mla=MlaSpec(
            q_lora_rank=64, kv_lora_rank=64, qk_nope_head_size=32, qk_rope_head_size=16, v_head_size=32
        ),
    ),
    "bert": ModelSpec(**TOKENS, family="bert", token_types=2),
    "t5": ModelSpec(**TOKENS, family="t5", decoder_layers=4, positions="relative", relative_buckets=32),
    "vit": ModelSpec(**SIZES, family="vit", image_size=48, patch_size=16, num_classes=10, positions="none"),
}  # fmt: skip
LAYOUTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "pipeline": ({"pp": 2, "tp": 2, "dp": 2, "sequence_parallel": True, "ep": 2}, {"recompute": "selective"}),
    "sharded": ({"dp": 4, "ep": 2}, {"sharding": "fsdp2", "recompute": "ops"}),
    "lora": ({"tp": 2, "dp": 2}, {"trainable": "lora", "lora_rank": 4, "recompute": "full"}),
    "frozen": ({"pp": 2, "dp": 2}, {"trainable": r"layers\.3\.", "sharding": "zero1"}),
    "forward": ({"pp": 2, "tp": 2}, {"trainable": "none"}),
    "some recomputed": ({"pp": 2}, {"recompute": "full", "recompute_layers": 1}),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", MODELS)
def test_runs(name: str, layout: str) -> None:
    degrees, settings = LAYOUTS[layout]
    if MODELS[name].moe is None:
        degrees = {key: value for key, value in degrees.items() if key != "ep"}
    elif degrees.get("tp", 1) > 1:
        degrees = {**degrees, "etp": 1, "sequence_parallel": True}
    training = TrainingSpec(global_batch=8, seq=128, decoder_seq=64, **settings)
    graph = generate(MODELS[name], ParallelSpec(**degrees), training, SoftwareSpec())
    assert verify(graph) == []
    assert step(graph).step_ps > 0
    if layout == "forward":
        assert set(graph.ops.phase.values) <= {"fwd", ""}


def test_sequences_of_a_model_are_what_must_divide() -> None:
    model = MODELS["vit"].model_copy(update={"image_size": 32})  # 4 patches and the class token
    with pytest.raises(InputError, match="tp=2 does not divide 5 tokens of a context-parallel rank"):
        generate(model, ParallelSpec(tp=2, sequence_parallel=True), TrainingSpec(), SoftwareSpec())
