"""Which ops of a traced program become which kernel: patterns as data.

A trace of a framework's plain code shows every aten op.  An optimised build runs fewer kernels: code under
``torch.jit.script`` or ``torch.compile`` is fused, and CUDA extensions replace whole sequences.

Note [Patterns]: a pattern is a sequence of op names in issue order on one stream, nothing between them.
Names are bare (``aten::add_.Tensor`` is ``add_``).  ``a|b`` is either, ``a?`` is optional, ``a*`` any number,
``a+`` at least one.  All ops lie in one phase and one layer.  With ``connected`` each op but the first
reads what an earlier op of the match wrote, so that equal names elsewhere do not match by accident.

The fused kernel reads each distinct tensor from outside once and writes each tensor that outlives it
once; what only its own ops touched costs neither traffic nor memory.  Its flops are the sum of its ops'.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property

from simcore.records import dataclass

FORWARD = ("fwd", "recompute")
BACKWARD = ("bwd",)


@dataclass(frozen=True)
class FusedKernel:
    """One mapping: ops that match ``pattern`` in ``phases`` run as the kernel ``name``.  See Note [Patterns].

    ``source`` says which real kernel it stands for.  ``independent``: the ops share no tensors (one launch
    over many tensors), so that the kernel's traffic is the sum of theirs.  ``unless`` is a workload option
    under which the framework launches the ops one by one after all.
    """

    name: str
    op_class: str
    pattern: str
    phases: tuple[str, ...]
    source: str
    connected: bool = True
    independent: bool = False
    unless: str = ""

    @cached_property
    def words(self) -> frozenset[str]:
        """All op names that the pattern mentions."""
        return frozenset(word for token in self.pattern.split() for word in token.rstrip("?*+").split("|"))

    def compile(self, letters: Mapping[str, str]) -> re.Pattern[str] | None:
        """The pattern over a text with one letter per op name; None when it cannot occur.

        ``letters`` maps the op names that do occur to their letters.
        """
        parts: list[str] = []
        for token in self.pattern.split():
            repeat = token[-1] if token[-1] in "?*+" else ""
            known = [letters[word] for word in token.rstrip("?*+").split("|") if word in letters]
            if known:
                parts.append(f"[{''.join(map(re.escape, known))}]{repeat}")
            elif repeat not in ("?", "*"):
                return None
        return re.compile("".join(parts))


_GELU = "add mul mul mul mul add mul tanh add mul"
_GELU_BACK = "add mul mul mul add mul tanh mul mul rsub mul mul add mul mul add mul add mul"
_MASK = "masked_fill|masked_fill_|where"
_FOREACH_ADAM = (
    "_foreach_add|_foreach_add_|_foreach_mul|_foreach_mul_|_foreach_lerp|_foreach_lerp_|_foreach_addcmul"
    "|_foreach_addcmul_|_foreach_sqrt|_foreach_sqrt_|_foreach_div|_foreach_div_|_foreach_pow"
    "|_foreach_reciprocal_|_foreach_neg|_foreach_neg_|_foreach_sub_"
)

#: Kernels of a Megatron-LM build with its fused kernels, apex and jit fusion, in order of precedence.
MEGATRON: tuple[FusedKernel, ...] = (
    FusedKernel(
        "scaled_masked_softmax_fwd",
        "softmax_fwd",
        f"_to_copy? mul|mul_|div|div_? {_MASK} _softmax _to_copy?",
        FORWARD,
        "apex scaled_masked_softmax_cuda / scaled_upper_triang_masked_softmax_cuda (masked_softmax_fusion)",
    ),
    FusedKernel(
        "scaled_masked_softmax_bwd",
        "softmax_bwd",
        f"_to_copy? _softmax_backward_data _to_copy? copy_? clone? {_MASK} copy_? mul|mul_|div|div_? "
        "_to_copy?",
        BACKWARD,
        "the same extension's backward; a masked score has probability 0 and so gradient 0",
    ),
    FusedKernel(
        "bias_gelu_fwd",
        "elementwise",
        _GELU,
        FORWARD,
        "Megatron fused_bias_gelu.bias_gelu under jit_fuser (bias_activation_fusion)",
    ),
    FusedKernel(
        "bias_gelu_bwd",
        "elementwise",
        _GELU_BACK,
        BACKWARD,
        "Megatron fused_bias_gelu.bias_gelu_back under jit_fuser",
    ),
    FusedKernel(
        "bias_dropout_add_fwd",
        "elementwise",
        "add? native_dropout add",
        FORWARD,
        "Megatron fused_bias_dropout under jit_fuser (bias_dropout_fusion)",
    ),
    FusedKernel(
        "bias_dropout_add_bwd",
        "elementwise",
        "native_dropout_backward sum",
        BACKWARD,
        "its backward: mask and scale the gradient, reduce it to the bias gradient in the same pass",
    ),
    FusedKernel(
        "cross_entropy_logits_max",
        "cross_entropy",
        "_to_copy? max|amax",
        FORWARD,
        "Megatron fused_cross_entropy.calculate_logits_max under jit_fuser (cross_entropy_loss_fusion)",
    ),
    FusedKernel(
        "cross_entropy_predicted_logits",
        "cross_entropy",
        "sub_|sub lt ge bitwise_or|logical_or clone? sub index_put_|masked_fill_ arange index clone? "
        "index_put_|masked_fill_ exp|exp_ sum cat|stack?",
        FORWARD,
        "Megatron fused_cross_entropy.calculate_predicted_logits under jit_fuser",
        connected=False,
    ),
    FusedKernel(
        "cross_entropy_loss",
        "cross_entropy",
        "log sub div_|div",
        FORWARD,
        "Megatron fused_cross_entropy.calculate_cross_entropy_loss under jit_fuser",
        connected=False,
    ),
    FusedKernel(
        "cross_entropy_bwd",
        "cross_entropy",
        "arange _to_copy? rsub index sub_|sub index_put_ mul_|mul _to_copy?",
        BACKWARD,
        "Megatron fused_cross_entropy.calculate_gradients under jit_fuser",
        connected=False,
    ),
    FusedKernel(
        "multi_tensor_l2norm",
        "reduction",
        "_foreach_norm stack|cat linalg_vector_norm|norm|_foreach_norm pow?",
        ("optimizer",),
        "apex amp_C.multi_tensor_l2norm: per-tensor norms and their norm in one launch sequence",
    ),
    FusedKernel(
        "fused_adam",
        "optimizer",
        f"{_FOREACH_ADAM}* _foreach_addcmul|_foreach_addcmul_ {_FOREACH_ADAM}* "
        "_foreach_addcdiv_|_foreach_addcdiv",
        ("optimizer",),
        "apex FusedAdam (amp_C.multi_tensor_adam): the whole foreach chain over all tensors",
        connected=False,
    ),
    FusedKernel(
        "multi_tensor_copy",
        "foreach",
        "copy_ copy_+",
        ("optimizer",),
        "apex amp_C.multi_tensor_scale with scale 1, as Megatron's _multi_tensor_copy_this_to_that uses it; "
        "its distributed optimizer copies shard by shard",
        connected=False,
        independent=True,
        unless="distributed_optimizer",
    ),
)

#: Attention as one kernel: scores, scale, mask, softmax and dropout never reach HBM.  The clones make
#: the output, or under selective recomputation the gradients of q, k and v, contiguous; the kernel writes
#: them so.
ATTENTION_FORWARD = FusedKernel(
    "flash_attention_fwd",
    "attention_fwd",
    f"baddbmm|bmm _to_copy? mul|mul_|div|div_? {_MASK}? _softmax|scaled_masked_softmax_fwd _to_copy? "
    "native_dropout? bmm clone?",
    FORWARD,
    "FlashAttention (arXiv 2205.14135); in fp32 the memory-efficient kernel of the same structure",
)

ATTENTION_BACKWARD = FusedKernel(
    "flash_attention_bwd",
    "attention_bwd",
    "bmm bmm clone? native_dropout_backward? _to_copy? _softmax_backward_data|scaled_masked_softmax_bwd "
    f"_to_copy? copy_? clone? {_MASK}? copy_? mul|mul_|div|div_? _to_copy? "
    "bmm mul|mul_? bmm mul|mul_? clone? clone?",
    BACKWARD,
    "FlashAttention's backward: recomputes the scores, 5 products instead of 4",
    connected=False,
)

#: Weight gradients that a GEMM adds to main_grad itself: (gemm names, accumulate names).
ACCUMULATE = (frozenset({"mm", "matmul"}), frozenset({"add_"}))
