"""Which class a kernel belongs to: by cost class where the graph says it, by its CUDA name in recordings."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import numpy.typing as npt

from simcore.cost.classify import OP_CLASSES, classify
from simcore.graph import Graph, OpKind
from simcore.graph.kinds import is_communication, is_priced

COMMUNICATION: Final = "communication"

#: Classes whose kernels are bound by matrix units; the others by memory.
COMPUTE_BOUND: Final = frozenset({"gemm", "bgemm", "conv", "attention_fwd", "attention_bwd"})

#: Classes whose kernels go over all parameters at once.
OVER_PARAMETERS: Final = ("optimizer", "foreach")

#: First match wins.  Names as cuBLAS, CUTLASS, cuDNN, FlashAttention, Tensile and PyTorch build them;
#: the last as TensorRT-LLM, vLLM, SGLang, aiter, SageAttention and MIOpen do.
_CUDA_NAMES: Final = tuple(
    (re.compile(pattern, re.IGNORECASE), op_class)
    for pattern, op_class in (
        (r"reshape_and_cache", "copy"),
        (r"rotary|\brope_", "elementwise"),
        (r"(flash|fmha|attention|attn).*(bwd|backward)|(bwd|backward).*(flash|fmha|attn)", "attention_bwd"),
        (r"flash|fmha|attention|attn_fwd", "attention_fwd"),
        (r"convolve|conv\d?d|implicit_gemm|winograd|(fprop|dgrad|wgrad)_(?!gemm)", "conv"),
        (r"gemm|gemv|nvjet|cijk_|xmma|cublas|cutlass.*mma|splitk", "gemm"),
        (r"softmax.*(backward|bwd)", "softmax_bwd"),
        (r"softmax", "softmax_fwd"),
        (r"(layer_?norm|rms_?norm|batch_?norm|bn_).*(backward|bwd|bw_|grad|gamma)", "norm_bwd"),
        (r"layer_?norm|rms_?norm|batch_?norm|bn_fw|rowwisemoments", "norm_fwd"),
        (r"cross_entropy|nll_loss", "cross_entropy"),
        (r"embedding.*(backward|bwd|grad)|index_?put|scatter|indexing_backward", "embedding_bwd"),
        (r"embedding|index_?select|gather", "embedding_fwd"),
        (r"adam|sgd|lamb(?!da)|adagrad", "optimizer"),
        (r"multi_tensor", "foreach"),
        (r"dropout", "dropout"),
        (r"catarray|copy|memcpy|transpose|permute", "copy"),
        (r"memset|fillfunctor", "fill"),
        (r"reduce|cumsum|cub::|sort", "reduction"),
        (r"elementwise|vectorized|pointwise|triton_poi", "elementwise"),
        (r"sage_fwd|paged_|batch(prefill|decode)|mla_", "attention_fwd"),
        (r"scudnn|hcudnn|fft2d|miopen\w*conv", "conv"),
        (r"matmul|\bbmm_|fused_moe|\bfmoe|moe_stage\d", "gemm"),
        (r"gamma_?beta", "norm_bwd"),
        (r"norm", "norm_fwd"),
        (r"pool", "pool"),
        (r"nchw_?to_?nhwc|nhwc_?to_?nchw", "layout"),
        (r"act_and_mul|doactivation|silu|gelu|rope|quant|cast_", "elementwise"),
    )
)  # fmt: skip

CLASSES: Final = (COMMUNICATION, *OP_CLASSES)


def cuda_class(name: str) -> str:
    """Cost class of a CUDA or HIP kernel by its name, "other" when it does not tell.

    A simulated recording may hold ops of the framework instead, by their own names.
    """
    if name.startswith("aten::"):
        return classify(name)
    return next((op_class for pattern, op_class in _CUDA_NAMES if pattern.search(name)), "other")


def op_classes(graph: Graph) -> npt.NDArray[np.str_]:
    """By op row: its class (one of :data:`CLASSES`), "" for what runs on no GPU."""
    ops = graph.ops
    found = np.full(len(ops), "", dtype="U16")
    found[is_communication(ops.kind)] = COMMUNICATION
    recorded = graph.workload.framework == "recorded"
    by_name: dict[tuple[int, int], str] = {}
    for row in np.flatnonzero(is_priced(ops.kind)).tolist():
        key = (int(ops.name.codes[row]), int(ops.op_class.codes[row]))
        if key not in by_name:
            name, op_class = ops.name[row], ops.op_class[row]
            if recorded and op_class in ("other", ""):
                op_class = cuda_class(name)
            by_name[key] = op_class or classify(name)
        found[row] = by_name[key]
    found[ops.kind == OpKind.MEMCPY] = "copy"
    return found
