"""A Llama in plain PyTorch, trained as ``llama.py HOW [OPTION ...]`` says.

HOW: ddp, fsdp1, fsdp2 (fsdp2-bare: torch moves the model and makes the mesh), hsdp, tp (DTensor), or zero1,
zero2, zero3 (DeepSpeed).  Options: lora and frozen (what trains), checkpoint, checkpoint-first and
checkpoint-ops (what runs again), accumulate (three microbatches), compile (each block), adam and clip.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

LAYERS, HIDDEN, HEADS, KV_HEADS, FFN, VOCAB, BATCH, SEQ = 3, 256, 8, 4, 512, 1024, 2, 128
LORA_RANK = 16
MICROBATCHES = 3


class Adapted(nn.Module):
    """A linear layer with a low-rank adapter beside it (arXiv 2106.09685)."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner
        self.lora_a = nn.Linear(inner.in_features, LORA_RANK, bias=False)
        self.lora_b = nn.Linear(LORA_RANK, inner.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.inner(x) + 2.0 * self.lora_b(self.lora_a(x))
        return y


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        size = HIDDEN // HEADS
        self.attention_norm, self.ffn_norm = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)
        self.wq = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.wk = nn.Linear(HIDDEN, KV_HEADS * size, bias=False)
        self.wv = nn.Linear(HIDDEN, KV_HEADS * size, bias=False)
        self.wo = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.w1 = nn.Linear(HIDDEN, FFN, bias=False)
        self.w3 = nn.Linear(HIDDEN, FFN, bias=False)
        self.w2 = nn.Linear(FFN, HIDDEN, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.attention_norm(x)
        size = HIDDEN // HEADS
        q, k, v = (w(h).unflatten(-1, (-1, size)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.wo(out.transpose(1, 2).flatten(2))
        h = self.ffn_norm(x)
        return x + self.w2(functional.silu(self.w1(h)) * self.w3(h))


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, HIDDEN)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(HIDDEN)
        self.output = nn.Linear(HIDDEN, VOCAB, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


def change(model: Llama, options: set[str]) -> None:
    """What trains, what runs again, what is compiled."""
    if options & {"lora", "frozen"}:
        model.requires_grad_(False)
    if "frozen" in options:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(re.search(r"layers\.[12]\.w|output", name) is not None)
    for index, block in enumerate(model.layers):
        if "lora" in options:
            block.wq, block.wv = Adapted(block.wq), Adapted(block.wv)
        if "compile" in options:
            block.compile()
        if "checkpoint" in options or ("checkpoint-first" in options and index == 0):
            model.layers[index] = checkpoint_wrapper(block)
        if "checkpoint-ops" in options:
            model.layers[index] = checkpoint_wrapper(block, context_fn=every_second_product)


def every_second_product() -> Any:
    """torchtitan's selective checkpointing: attention and every second product are kept."""
    counted = {False: 0, True: 0}

    def policy(context: Any, op: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
        if op == torch.ops.aten.mm.default:
            counted[context.is_recompute] += 1
            keep = counted[context.is_recompute] % 2 == 1
        else:
            keep = op in (
                torch.ops.aten._scaled_dot_product_flash_attention.default,
                torch.ops.aten._scaled_dot_product_cudnn_attention.default,
            )
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def parallel(model: Llama, how: str) -> nn.Module:
    """``model`` over all ranks."""
    world, device = dist.get_world_size(), torch.cuda.current_device()
    if how == "ddp":
        return DistributedDataParallel(model, device_ids=[device])
    if how == "tp":
        tp = init_device_mesh("cuda", (world,), mesh_dim_names=("tp",))
        styles = {name: ColwiseParallel() for name in ("wq", "wk", "wv", "w1", "w3")}
        for layer in model.layers:
            parallelize_module(layer, tp, {**styles, "wo": RowwiseParallel(), "w2": RowwiseParallel()})
        return model
    if how == "fsdp1":
        return FullyShardedDataParallel(
            model, auto_wrap_policy=ModuleWrapPolicy({type(layer) for layer in model.layers}),
            mixed_precision=MixedPrecision(param_dtype=torch.bfloat16), device_id=device,
            use_orig_params=True,
        )  # fmt: skip
    mesh = None
    if how != "fsdp2-bare":
        sizes = (world,) if how == "fsdp2" else (world // 4, 4)
        names = ("dp",) if how == "fsdp2" else ("replicate", "shard")
        mesh = init_device_mesh("cuda", sizes, mesh_dim_names=names)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def loss_of(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The mean over all tokens, in fp32."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())


def train_with_deepspeed(model: Llama, stage: int, microbatches: int) -> None:
    import deepspeed

    config = {
        "train_micro_batch_size_per_gpu": BATCH,
        "gradient_accumulation_steps": microbatches,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    tokens = torch.zeros(BATCH, SEQ, dtype=torch.long, device=engine.device)
    for _ in range(4 * microbatches):
        engine.backward(loss_of(engine(tokens), tokens))
        engine.step()


def main(how: str, options: set[str]) -> None:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    microbatches = MICROBATCHES if "accumulate" in options else 1
    model = Llama()
    change(model, options)
    if how.startswith("zero"):
        train_with_deepspeed(model, int(how[-1]), microbatches)
        return
    if how != "fsdp2-bare":
        model = model.to("cuda", torch.bfloat16 if how in ("ddp", "tp") else torch.float32)
    trained = parallel(model, how)
    chosen = [parameter for parameter in trained.parameters() if parameter.requires_grad]
    if "adam" in options:
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(chosen, lr=1e-4, fused=True)
    else:
        # A list of split parameters and whole ones cannot be stepped on at once, on a GPU neither.
        optimizer = torch.optim.SGD(chosen, lr=1e-4, foreach=False if how == "tp" else None)
    tokens = torch.zeros(BATCH, SEQ, dtype=torch.long, device="cuda")
    for _ in range(3):
        for microbatch in range(microbatches):
            waits = how == "ddp" and microbatch + 1 < microbatches
            with trained.no_sync() if waits else contextlib.nullcontext():
                loss_of(trained(tokens), tokens).backward()
        if "clip" in options:
            torch.nn.utils.clip_grad_norm_(chosen, 1.0)
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main(sys.argv[1], set(sys.argv[2:]))
