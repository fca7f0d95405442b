"""Gated short convolutions (LFM2): parameters as transformers has them, kernels, what is dealt out."""

from __future__ import annotations

from typing import Any

import pytest

from simcore.errors import InputError
from simcore.hardware import load_cluster
from simcore.run import run
from tests.models.test_parameters import num_parameters
from workloads.jobs import complete
from workloads.models.build import model_pieces
from workloads.models.flops import model_flops
from workloads.models.hugging_face import from_hugging_face
from workloads.models.local import Shard
from workloads.models.spec import ModelSpec

#: LiquidAI/LFM2-1.2B config.json, what says something of its size.
SMALL: dict[str, Any] = {
    "model_type": "lfm2", "vocab_size": 65536, "hidden_size": 2048, "num_hidden_layers": 16,
    "intermediate_size": 12288, "num_attention_heads": 32, "num_key_value_heads": 8,
    "full_attn_idxs": [2, 5, 8, 10, 12, 14], "conv_L_cache": 3, "block_multiple_of": 256,
}  # fmt: skip
#: LiquidAI/LFM2-8B-A1B, in the layers of transformers' defaults.
LARGE: dict[str, Any] = {
    "model_type": "lfm2_moe", "vocab_size": 65536, "hidden_size": 2048, "num_hidden_layers": 24,
    "intermediate_size": 7168, "moe_intermediate_size": 1792, "num_attention_heads": 32,
    "num_key_value_heads": 8, "num_experts": 32, "num_experts_per_tok": 4, "num_dense_layers": 2,
    "layer_types": ["conv", "conv", "full_attention", "conv"] * 6,
}  # fmt: skip


def tiny(pattern: str = "C-*-", **more: Any) -> ModelSpec:
    fields = {"layers": 2, "hidden": 256, "heads": 8, "ffn": 512, "vocab": 1000, "bias": False,
              "norm": "rmsnorm", "positions": "rotary", "layer_pattern": pattern,
              "gated_conv": {"tokens": 3}}  # fmt: skip
    return ModelSpec(**{**fields, **more})


@pytest.mark.parametrize(("config", "parameters"), [(SMALL, 1_170_340_608), (LARGE, 8_339_929_856)])
def test_parameters_are_those_of_transformers(config: dict[str, Any], parameters: int) -> None:
    """Counted on the meta device by transformers 5.24 for these configurations."""
    assert num_parameters(from_hugging_face(config)) == parameters


def test_widths_of_feed_forward_are_rounded_as_the_configuration_does() -> None:
    # 2 / 3 of 12,288 is 8,192; times 1.5 12,288; a multiple of 5,000 from there on: 15,000.
    said = {**SMALL, "block_ffn_dim_multiplier": 1.5, "block_multiple_of": 5000}
    assert from_hugging_face(said).ffn == 15_000
    assert from_hugging_face({**SMALL, "block_auto_adjust_ff_dim": False}).ffn == 12_288
    with pytest.raises(InputError, match="conv_bias = True: biases of gated convolutions are not modelled"):
        from_hugging_face({**SMALL, "conv_bias": True})


def test_a_layer_weighs_what_it_convolves_before_and_behind() -> None:
    whole = model_pieces(tiny(), Shard(micro_batch=1, seq=512)).layers[0]
    half = model_pieces(tiny(), Shard(micro_batch=1, seq=512, tp=2, sequence_parallel=True)).layers[0]
    kernels = [kernel.name for kernel in whole.forward if ".conv" in kernel.module and kernel.flops == 0]
    assert kernels == ["aten::mul", "causal_conv1d_fwd_kernel", "aten::mul"]
    of_conv = {p.name: p.numel for p in whole.parameters if ".conv" in p.name}
    assert list(of_conv.values()) == [3 * 256 * 256, 256 * 3, 256 * 256]
    assert [p.numel * 2 for p in half.parameters if ".conv" in p.name] == list(of_conv.values())
    # Both projections and three tokens a channel, forward, and twice that backward, of 512 tokens.
    one, two = (model_flops(tiny(layers=n, layer_pattern="C-" * n), 512, causal_once=True) for n in (1, 2))
    assert two - one == 6 * 512 * (256 * (4 * 256 + 3) + 2 * 256 * 512)


def test_a_job_with_gated_convolutions_runs_and_says_what_it_cannot() -> None:
    said = {"model": tiny().model_dump(), "parallel": {"tp": 2}, "training": {"seq": 512}}
    job = complete(said, "gated", num_gpus=2, generation="hopper")
    assert run(job.graph(), load_cluster("h100-8", job.gpu)).step_s > 0
    with pytest.raises(InputError, match=r"parallel\.cp=2: gated convolutions are not dealt out"):
        complete({**said, "parallel": {"cp": 2}}, "gated", num_gpus=2, generation="hopper").graph()
    del said["model"]["gated_conv"]
    with pytest.raises(InputError, match="gated_conv: missing"):
        complete(said, "no sizes", num_gpus=2).graph()
