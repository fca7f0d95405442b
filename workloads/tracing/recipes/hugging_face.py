"""Hugging Face models: ``torchrun ... hugging_face.py --model gpt2-xl``; needs transformers."""

from __future__ import annotations

import argparse
import contextlib
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from workloads.tracing.recipes.wrapping import PARALLEL, mesh, start, wrap

_LLAMA = {"vocab_size": 128256, "num_key_value_heads": 8, "rope_theta": 500000.0}
#: Name -> (family, sizes).
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHead", {"n_embd": 768, "n_layer": 12, "n_head": 12}),
    "gpt2-xl": ("GPT2LMHead", {"n_embd": 1600, "n_layer": 48, "n_head": 25}),
    "bert-large": (
        "BertForMaskedLM",
        {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
    ),
    "llama3-8b": (
        "Llama",
        {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, **_LLAMA}
        | {"num_attention_heads": 32},
    ),
    "llama3-70b": (
        "Llama",
        {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, **_LLAMA}
        | {"num_attention_heads": 64},
    ),
    "mixtral-8x7b": ("Mixtral", {}),
    "qwen3-30b-a3b": ("Qwen3Moe", {"num_hidden_layers": 48, "moe_intermediate_size": 768, "head_dim": 128}),
}
#: Family -> (configuration, model, where its blocks are, the option that counts them).
_FAMILIES: dict[str, tuple[Any, Any, str, str]] = {
    "GPT2LMHead": (GPT2Config, GPT2LMHeadModel, "transformer.h", "n_layer"),
    "BertForMaskedLM": (BertConfig, BertForMaskedLM, "bert.encoder.layer", "num_hidden_layers"),
    "Llama": (LlamaConfig, LlamaForCausalLM, "model.layers", "num_hidden_layers"),
    "Qwen3Moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM, "model.layers", "num_hidden_layers"),
    "Mixtral": (MixtralConfig, MixtralForCausalLM, "model.layers", "num_hidden_layers"),
}
_TENSOR_PARALLEL = {
    **dict.fromkeys(("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), ColwiseParallel),
    **dict.fromkeys(("mlp.gate_proj", "mlp.up_proj"), ColwiseParallel),
    **dict.fromkeys(("self_attn.o_proj", "mlp.down_proj"), RowwiseParallel),
}


def build(name: str, layers: int, seq: int, experts: str = "") -> tuple[Any, list[Any]]:
    """(model, its blocks); ``layers`` 0: all that the model has; ``experts``: how transformers runs them."""
    family, sizes = MODELS[name]
    configuration, model_class, where, count = _FAMILIES[family]
    if layers:
        sizes = {**sizes, count: layers}
    if family in ("Llama", "Mixtral", "Qwen3Moe"):
        sizes = {**sizes, "max_position_embeddings": seq}
    if experts:
        sizes = {**sizes, "experts_implementation": experts}
    config = configuration(**sizes, attn_implementation="sdpa", use_cache=False)
    model = model_class(config)
    return model, list(model.get_submodule(where))


def with_adapters(model: Any, rank: int) -> Any:
    """``model`` frozen, with trained low-rank adapters beside its query and value projections."""
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(r=rank, target_modules=["q_proj", "v_proj"]))


def model_parser() -> argparse.ArgumentParser:
    """What all programs of these models are told."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=MODELS, default="gpt2")
    parser.add_argument("--batch", type=int, default=1, help="sequences per microbatch and rank")
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=0)
    parser.add_argument("--accumulate", type=int, default=1, help="microbatches per step")
    parser.add_argument("--train-steps", type=int, default=4)
    return parser


def main() -> None:
    """Train on tokens that are all zero."""
    parser = model_parser()
    parser.add_argument("--parallel", choices=PARALLEL, default="ddp")
    parser.add_argument("--tensor-parallel", type=int, default=1, help="Llama under fsdp2")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--fp32", action="store_true", help="under ddp: no bf16 autocast")
    parser.add_argument("--experts", default="", help="eager, grouped_mm or batched_mm")
    parser.add_argument("--lora", type=int, default=0, help="rank of adapters of queries and values; peft")
    options = parser.parse_args()
    device = start()
    inner, blocks = build(options.model, options.layers, options.seq, options.experts)
    if options.lora:
        inner = with_adapters(inner, options.lora)
    inner.to(device).train()
    if options.checkpointing:
        inner.gradient_checkpointing_enable()
    over = None
    if options.tensor_parallel > 1:
        both = mesh(options.tensor_parallel)
        for block in blocks:
            plan = {name: style() for name, style in _TENSOR_PARALLEL.items()}
            parallelize_module(block, both["tp"], plan)
        over = both["dp"]
    model: Any = wrap(inner, blocks, options.parallel, over)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = torch.zeros(options.batch, options.seq, dtype=torch.long, device=device)
    for _ in range(options.train_steps):
        for index in range(options.accumulate):
            last = index == options.accumulate - 1
            ddp = options.parallel == "ddp"
            with model.no_sync() if ddp and not last else contextlib.nullcontext():
                with torch.autocast("cuda", torch.bfloat16, enabled=ddp and not options.fp32):
                    loss = model(input_ids=tokens, labels=tokens).loss
                (loss / options.accumulate).backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
