"""flash-attn: attention, padded and packed, and what it has beside it."""

from __future__ import annotations

import importlib
from typing import Any

from workloads.tracing.stand_ins.flash_attn import around, attention, decode, exchange, modules

_VERSION = "2.8.3"

#: Also where programs look for them.
_ATTENTION = {
    name: getattr(attention, f"flash_attn_{name}func")
    for name in ("", "kvpacked_", "qkvpacked_", "varlen_", "varlen_kvpacked_", "varlen_qkvpacked_")
}
_FUNCTIONS = {
    "flash_attn_with_kvcache": decode.flash_attn_with_kvcache,
    **{f"flash_attn_{name}func": function for name, function in _ATTENTION.items()},
}
_KERNELS = {
    name: getattr(attention, name)
    for name in (
        *("_flash_attn_forward", "_flash_attn_backward"),
        *("_flash_attn_varlen_forward", "_flash_attn_varlen_backward"),
    )
}


def _from(*names: str) -> dict[str, Any]:
    return {name: getattr(around, name) for name in names}


_MODULES: dict[str, dict[str, Any]] = {
    "flash_attn": {"__version__": _VERSION, **_FUNCTIONS},
    "flash_attn.bert_padding": {
        **_from("index_first_axis", "index_put_first_axis", "pad_input", "unpad_input"),
        "rearrange": lambda *args, **axes: importlib.import_module("einops").rearrange(*args, **axes),
    },
    "flash_attn.flash_attn_interface": {**_FUNCTIONS, **_KERNELS},
    "flash_attn.layers": {},
    "flash_attn.layers.rotary": _from("RotaryEmbedding", "apply_rotary_emb"),
    "flash_attn.losses": {},
    "flash_attn.losses.cross_entropy": _from("CrossEntropyLoss"),
    "flash_attn.modules": {},
    "flash_attn.modules.embedding": modules.named(
        "modules.embedding", "GPT2Embeddings", "ParallelGPT2Embeddings", "VocabParallelEmbedding"
    ),
    "flash_attn.modules.mha": {
        **_FUNCTIONS,
        "FlashSelfAttention": modules.FlashSelfAttention,
        "FlashCrossAttention": modules.FlashCrossAttention,
        **modules.named("modules.mha", "MHA", "ParallelMHA"),
    },
    "flash_attn.modules.mlp": modules.named(
        "modules.mlp", *("Mlp", "GatedMlp", "FusedMLP", "ParallelMLP", "ParallelGatedMlp", "ParallelFusedMLP")
    ),
    "flash_attn.ops": {},
    "flash_attn.ops.triton": {},
    "flash_attn.ops.triton.cross_entropy": _from("cross_entropy_loss"),
    "flash_attn.ops.triton.layer_norm": {
        "RMSNorm": around.TritonRMSNorm,
        **_from("layer_norm_fn", "rms_norm_fn"),
    },
    "flash_attn.utils": {},
    "flash_attn.utils.distributed": {
        name + suffix: getattr(exchange, name + suffix)
        for name in ("all_gather", "all_reduce", "reduce_scatter")
        for suffix in ("", "_raw")
    },
}


def members(name: str) -> dict[str, Any] | None:
    """What is in module ``name``; None: there is no such module."""
    return _MODULES.get(name)


def submodules(name: str) -> tuple[str, ...]:
    """Modules that the import of ``name`` imports."""
    return ("flash_attn.bert_padding", "flash_attn.flash_attn_interface") if name == "flash_attn" else ()
