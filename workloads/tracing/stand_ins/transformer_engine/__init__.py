"""Transformer Engine: layers, attention, moves of tokens, optimizers, as Megatron-core and scripts call them.

Products are torch's own operators or carry a name of their own; collectives, streams and what is kept for
the backward pass are those of TransformerEngine 2.9.  What is left out (user buffers, operators to be fused)
is refused where it is used.
"""

from __future__ import annotations

from typing import Any

import torch

from workloads.tracing.stand_ins import apex, apex_optimizers
from workloads.tracing.stand_ins.refusal import absent
from workloads.tracing.stand_ins.transformer_engine import (
    attention,
    modules,
    products,
    quantisation,
    quantised_groups,
    quantised_parameters,
    routing,
    state,
)

_VERSION = "2.9.0"


def _named(*members: Any) -> dict[str, Any]:
    return {member.__name__: member for member in members}


_BASE = {
    "TransformerEngineBaseModule": modules.TransformerEngineBaseModule,
    "get_dummy_wgrad": products.get_dummy_wgrad,
    "initialize_ub": absent("tensor-parallel communication overlapped by user buffers"),
    "destroy_ub": lambda: None,
    "UserBufferQuantizationMode": absent("user buffers"),
}
_MODULES_OF_LAYERS = {
    "Linear": modules.EngineLinear,
    **_named(modules.LayerNormLinear, modules.GroupedLinear, modules.LayerNorm, modules.RMSNorm),
    **{
        name: absent(name, torch.nn.Module)
        for name in ("LayerNormMLP", "MultiheadAttention", "TransformerLayer")
    },
}
_FP8 = {
    "FP8GlobalStateManager": quantisation.FP8GlobalStateManager,
    "autocast": quantisation.autocast,
    "fp8_autocast": quantisation.autocast,
    "fp8_model_init": quantised_parameters.quantized_model_init,
    "quantized_model_init": quantised_parameters.quantized_model_init,
    "check_fp8_support": lambda: (True, ""),
}
_TENSORS = {**quantised_parameters.TENSORS, "NVFP4Tensor": absent("NVFP4Tensor", torch.Tensor)}
_DISTRIBUTED = {
    **_named(state.CudaRNGStatesTracker, state.checkpoint, state.activation_recompute_forward),
    "get_all_rng_states": dict,
    "is_fp8_activation_recompute_enabled": quantisation.FP8GlobalStateManager.is_fp8_enabled,
    "in_fp8_activation_recompute_phase": quantisation.FP8GlobalStateManager.is_fp8_enabled,
}
_ROPE = _named(attention.apply_rotary_pos_emb, attention.apply_fused_qkv_rotary_pos_emb)
_ATTENTION = {
    **_named(attention.DotProductAttention, attention.apply_rotary_pos_emb),
    "_SplitAlongDim": attention._SplitAlongDim,
}
_OPTIMIZERS = {
    **_named(apex_optimizers.FusedAdam, apex.multi_tensor_applier),
    **_named(apex.multi_tensor_l2norm, apex.multi_tensor_scale),
    "FusedSGD": torch.optim.SGD,
}
_FUSED_OPERATORS = (
    *("BasicLinear", "Bias", "FusibleOperation", "GEGLU", "GELU", "GroupedLinear", "LayerNorm", "Linear"),
    *("MakeExtraOutput", "RMSNorm", "ReGLU", "ReLU", "Sequential", "SiLU", "SwiGLU"),
)
_FP8_PADDING = _named(quantised_groups.Fp8Padding, quantised_groups.Fp8Unpadding)

_CONTENTS: dict[str, dict[str, Any]] = {
    "": {"__version__": _VERSION},
    "common": {},
    "common.recipe": {"Format": quantisation.Format, "Recipe": quantisation.Recipe, **quantisation.RECIPES},
    "pytorch": {
        **_MODULES_OF_LAYERS,
        **_FP8,
        **_FP8_PADDING,
        **_named(attention.DotProductAttention, state.checkpoint, state.CudaRNGStatesTracker),
        **_named(routing.moe_permute, routing.moe_unpermute, routing.parallel_cross_entropy),
    },
    "pytorch.attention": _ATTENTION,
    "pytorch.attention.rope": _ROPE,
    "pytorch.cross_entropy": _named(routing.parallel_cross_entropy),
    "pytorch.distributed": _DISTRIBUTED,
    "pytorch.float8_tensor": {"Float8Tensor": _TENSORS["Float8Tensor"]},
    "pytorch.fp8": _FP8,
    "pytorch.module": _MODULES_OF_LAYERS,
    "pytorch.module.base": _BASE,
    "pytorch.ops": {name: absent(f"operators to be fused ({name})") for name in _FUSED_OPERATORS},
    "pytorch.optimizers": _OPTIMIZERS,
    "pytorch.permutation": _named(
        routing.moe_permute,
        routing.moe_permute_with_probs,
        routing.moe_unpermute,
        routing.moe_sort_chunks_by_index,
        routing.moe_sort_chunks_by_index_with_probs,
    ),
    "pytorch.quantization": _FP8,
    "pytorch.router": _named(
        routing.fused_topk_with_score_function,
        routing.fused_compute_score_for_moe_aux_loss,
        routing.fused_moe_aux_loss,
    ),
    "pytorch.tensor": _TENSORS,
    "pytorch.tensor.float8_tensor": {"Float8Tensor": _TENSORS["Float8Tensor"]},
    "pytorch.tensor.mxfp8_tensor": {"MXFP8Tensor": _TENSORS["MXFP8Tensor"]},
    "pytorch.tensor.utils": quantised_parameters.UTILITIES,
    "pytorch.tensor.nvfp4_tensor": {"NVFP4Tensor": _TENSORS["NVFP4Tensor"]},
}
_TOP = "transformer_engine"


def members(name: str) -> dict[str, Any] | None:
    """What is in module ``name``; None: there is no such module."""
    return _CONTENTS.get(name.removeprefix(_TOP).removeprefix("."))


def submodules(name: str) -> list[str]:
    """Modules that importing ``name`` imports, too, as the package does."""
    inside = f"{name}."
    every = [f"{_TOP}.{rest}" for rest in _CONTENTS if rest]
    return [one for one in every if one.startswith(inside) and "." not in one.removeprefix(inside)]
