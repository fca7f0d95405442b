"""Layers of Megatron-core as they are traced hold what described ones do: latent attention, a layer that
predicts a further token, experts, products in fp8.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from simcore.memory.caching import AllocatorSettings
from simcore.memory.recorded import played_programs
from workloads.jobs import complete
from workloads.parallel.job import Job
from workloads.parallel.played import played_stages
from workloads.tracing.drive.fork_server import WorkerPool
from workloads.tracing.drive.script_job import ScriptJob
from workloads.tracing.drive.trace import trace_in

SCRIPT = Path(__file__).parent / "scripts" / "megatron_layers.py"
MODEL: dict[str, Any] = {
    "name": "gpt", "layers": 2, "hidden": 512, "heads": 8, "ffn": 2048, "vocab": 2048, "gated": True,
    "activation": "silu", "norm": "rmsnorm", "bias": False, "positions": "rotary", "tied_embeddings": False,
    "dropout": 0.0,
}  # fmt: skip
#: What each word of the script's is of the model.
PARTS: dict[str, dict[str, Any]] = {
    "latent": {
        "mla": {
            "q_lora_rank": 192, "kv_lora_rank": 128, "qk_nope_head_size": 64, "qk_rope_head_size": 32,
            "v_head_size": 64,
        }
    },
    "further": {"mtp_layers": 1},
    "experts": {"moe": {"num_experts": 8, "top_k": 2, "ffn": 512}},
    "fp8": {},
}  # fmt: skip


@pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="megatron-core is not installed")
@pytest.mark.parametrize("which", ["", "latent", "latent further", "experts", "fp8"])
def test_traced_layers_hold_what_described_ones_do(pool: WorkerPool, which: str) -> None:
    graph = trace_in(pool, ScriptJob(SCRIPT, tuple(which.split()), world_size=1))
    (traced,) = played_programs(graph, {}, AllocatorSettings(), 0, near=0)
    model = {**MODEL, **{key: value for word in which.split() for key, value in PARTS[word].items()}}
    made = complete(
        {
            "model": model, "parallel": {},
            "training": {
                "seq": 1024, "micro_batch": 1, "global_batch": 2, "sharding": "ddp", "recompute": "none",
                "precision": "fp8" if "fp8" in which else "bf16",
            },
            # Megatron-Core 0.16's: the loss works in place, experts are weighted before their second product.
            "software": {
                "preset": "megatron-core", "cross_entropy": "in_place", "moe_weighted_early": True,
                "moe_router_fp32": False, "workspace_bytes": 0,
            },
        }, "a job", num_gpus=1, generation="hopper",
    )  # fmt: skip
    (said,) = played_stages(Job(made.model, made.parallel, made.training, made.software))
    assert said.memory.peak_allocated == pytest.approx(traced.memory.peak_allocated, rel=0.02)
