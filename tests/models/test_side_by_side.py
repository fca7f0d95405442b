"""State-space heads beside those of attention (Falcon-H1): parameters, kernels, a job."""

from __future__ import annotations

from collections import Counter
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

#: tiiuae/Falcon-H1-7B config.json, what says something of its size.
SEVEN: dict[str, Any] = {
    "model_type": "falcon_h1", "vocab_size": 130048, "hidden_size": 3072, "num_hidden_layers": 44,
    "intermediate_size": 12288, "num_attention_heads": 12, "num_key_value_heads": 2, "head_dim": 128,
    "mamba_d_ssm": 3072, "mamba_n_heads": 24, "mamba_d_head": 128, "mamba_n_groups": 1, "mamba_d_state": 256,
}  # fmt: skip


def tiny(pattern: str = "H-H-") -> ModelSpec:
    return ModelSpec(
        layers=2, hidden=256, heads=8, ffn=512, vocab=1000, bias=False, norm="rmsnorm", positions="rotary",
        mamba={"heads": 8, "head_size": 32, "state": 64, "groups": 2, "normed": False},
        layer_pattern=pattern,
    )  # fmt: skip


def test_parameters_are_those_of_transformers() -> None:
    """Counted on the meta device by transformers 5.24 for these configurations."""
    assert num_parameters(from_hugging_face(SEVEN)) == 7_585_513_568
    normed = {"mamba_d_ssm": None, "mamba_rms_norm": True, "mamba_n_groups": 2, "mamba_n_heads": 24}
    with_norm = from_hugging_face({**SEVEN, **normed, "mamba_d_head": "auto", "num_hidden_layers": 1})
    without = from_hugging_face({**SEVEN, **normed, "mamba_rms_norm": False, "num_hidden_layers": 1})
    assert num_parameters(with_norm) - num_parameters(without) == 2 * 3072
    with pytest.raises(InputError, match="projectors_bias = True: biases of mixers are not modelled"):
        from_hugging_face({**SEVEN, "projectors_bias": True})


def test_both_mixers_read_what_one_norm_made() -> None:
    def kernels(pattern: str) -> Counter[str]:
        piece = model_pieces(tiny(pattern), Shard(micro_batch=1, seq=512)).layers[0]
        return Counter(kernel.name for kernel in piece.forward)

    both, alone, heads, ffn = map(kernels, ("H-H-", "M-M-", "*-*-", "--"))
    # Beside the feed-forward block: one norm for two, and a sum of both mixers in place of a residual sum.
    assert both + ffn + Counter(["rms_norm_fwd"]) == alone + heads
    flops = [model_flops(tiny(p), 512, causal_once=True) for p in ("H-H-", "M-M-", "*-*-", "--")]
    assert flops[0] == flops[1] + flops[2] - flops[3]


def test_a_job_with_both_runs() -> None:
    said = {"model": tiny().model_dump(), "parallel": {"tp": 2}, "training": {"seq": 512}}
    job = complete(said, "both", num_gpus=2, generation="hopper")
    assert run(job.graph(), load_cluster("h100-8", job.gpu)).step_s > 0
    said["model"]["mamba"] = None
    with pytest.raises(InputError, match="mamba: missing; layer_pattern has layers 'H'"):
        complete(said, "no sizes", num_gpus=2).graph()
