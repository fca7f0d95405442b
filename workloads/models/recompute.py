"""What recomputation runs again, and what it keeps.

Single modules ("selective") run again before their own backward; names and contents are those of
megatron/core/transformer/transformer_config.py (recompute_modules); with "mla_up_proj" positions and the
assembly of keys run again, too (multi_latent_attention.py).  What the next product reads of a module that
runs again counts as kept; where builds let go of it (``frees``: CheckpointWithoutOutput of
megatron/core/tensor_parallel/random.py), that is of norms, the up-projections of latent attention and
experts' activations.

Whole layers ("full", "ops") run again but for the outputs that are held.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final, Literal

from workloads.models.op_tape import OpTape, Recompute, TapedLaunch

RecomputeModule = Literal["core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts"]

#: Outputs that full recomputation can keep: what attention reads, what it writes, its projection, and the
#: products of a feed-forward block.  JAX calls them query_proj, key_proj and value_proj, context, out_proj,
#: mlpwi (ffn1) and mlpwo (ffn2) (jax.checkpoint_policies.save_only_these_names in MaxText and Praxis).
HeldOutput = Literal["qkv", "attention", "out", "up", "down"]

_OUTPUTS: Final[Mapping[HeldOutput, str]] = {
    "qkv": r"\.linear_(qkv|q|k|v|kv|q_up_proj|kv_up_proj)\b",
    "attention": r"\.core_attention$",
    "out": r"\.linear_proj\b",
    "up": r"\.linear_fc1\b",
    "down": r"\.linear_fc2\b",
}
_PRODUCTS: Final = ("gemm", "bgemm", "attention_fwd")

#: Kernels' modules that a name stands for; "mlp" of dense layers, "moe" of those with experts.
_PATTERNS: Final[Mapping[RecomputeModule, str]] = {
    "core_attn": r"\.core_attention$",
    "layernorm": r"\.(input|pre_mlp)_layernorm$",
    "mla_up_proj": r"\.(linear_q_up_proj|linear_kv_up_proj|q_layernorm|kv_layernorm|self_attention)$",
    "mlp": r"\.mlp\b",
    "moe": r"\.mlp\b",
    "moe_act": r"\.experts$",
    "shared_experts": r"\.shared_experts\b",
}

#: Of these builds can let go of the output.
_FREED: Final = ("layernorm", "mla_up_proj", "moe_act")


def mark_recomputed(
    tape: OpTape, modules: Collection[RecomputeModule], *, sparse: bool, frees: bool = False
) -> None:
    """Let ops of ``modules``, and no others, run again; none given: as marked already (core attention).

    ``sparse``: the layer has experts.  ``frees``: what runs again leaves nothing for what comes next.
    """
    if not modules:
        return
    other = "mlp" if sparse else "moe"
    wanted = re.compile("|".join(_PATTERNS[name] for name in modules if name != other) or r"$^")
    for op in tape.ops:
        op.again = bool(op.forward) and bool(wanted.search(tape.forward[op.forward[0]].kernel.module))
    freed = re.compile("|".join(_PATTERNS[name] for name in modules if name in _FREED) or r"$^")
    ran = [op for op in tape.ops if op.forward] if frees else []
    for before, op in pairwise(ran):
        again = before.again and bool(freed.search(tape.forward[before.forward[0]].kernel.module))
        if again and not op.again and op.reads < 0:
            for k in op.forward:
                tape.forward[k] = replace(tape.forward[k], saved_inputs=0)


def held_outputs(
    forward: Sequence[TapedLaunch], recompute: Recompute, names: Collection[HeldOutput], tp: int = 1
) -> Mapping[int, int] | None:
    """Bytes kept of what forward launches write, by position: these do not run again.

    Of "full" recomputation those called ``names``; None where a layer runs again without regard to what its
    backward needs.  What comes between a product and what is held of it (a bias, rotary positions) does not
    run again either.  ``tp`` ranks share what a reduction leaves.
    """
    if recompute == "ops":
        return {k: _written(forward[k], tp) for k in _worth_keeping(forward)}
    if recompute != "full" or not names:
        return None
    wanted = re.compile("|".join(_OUTPUTS[name] for name in names))
    held: dict[int, int] = {}
    module = ""
    for k, launch in enumerate(forward):
        kernel = launch.kernel
        if kernel.op_class in _PRODUCTS:
            module = kernel.module if wanted.search(kernel.module) else ""
            if module:
                held[k] = _written(launch, tp)
        elif module and not kernel.collective and _belongs(kernel.module, module):
            held[k] = 0
    return held


def _belongs(module: str, product: str) -> bool:
    """Whether a kernel is part of what ``product`` makes: its own module, or attention before its core."""
    return module == product or (
        bool(re.search(_OUTPUTS["qkv"], product)) and module == product.rpartition(".linear_")[0]
    )


def _written(launch: TapedLaunch, tp: int) -> int:
    kernel = launch.kernel
    return kernel.bytes_written or kernel.num_bytes // (tp if kernel.collective == "reduce_scatter" else 1)


def _worth_keeping(forward: Sequence[TapedLaunch]) -> list[int]:
    """What torchtitan's selective op checkpointing keeps: every second product, attention, reductions.

    Source: torchtitan/models/llama3/infra/parallelize.py, ``_save_list`` and ``_custom_policy``.
    """
    kept, products = [], 0
    for k, launch in enumerate(forward):
        kernel = launch.kernel
        if kernel.op_class == "gemm":
            products += 1
            if products % 2:
                kept.append(k)
        elif kernel.op_class == "attention_fwd" or kernel.collective == "reduce_scatter":
            kept.append(k)
    return kept
