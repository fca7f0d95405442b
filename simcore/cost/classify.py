"""Which cost class an op belongs to, by its name: aten ops and the kernels that graph passes create."""

from __future__ import annotations

import re
from functools import lru_cache

OP_CLASSES = (
    "gemm", "bgemm", "attention_fwd", "attention_bwd", "elementwise", "reduction", "softmax_fwd",
    "softmax_bwd", "norm_fwd", "norm_bwd", "embedding_fwd", "embedding_bwd", "cross_entropy", "dropout",
    "optimizer", "foreach", "copy", "fill", "transpose", "conv", "layout", "pool",
    "batch_norm_fwd", "batch_norm_bwd", "lookup_fwd", "lookup_bwd", "key_sort", "quantize",
    "scan", "delta_rule", "short_conv", "other",
)  # fmt: skip

#: Ops whose name says it all.  Everything else goes through the patterns below.
_EXACT: dict[str, str] = {}


def _names(op_class: str, names: str) -> None:
    for name in names.split():
        _EXACT[name] = op_class


_names("gemm", "mm addmm linear matmul mv addmv addr dot outer ger vdot linear_backward matmul_backward "
       "sparse_mm int_mm scaled_mm scaled_mm_v2 addmm_activation tensordot inner chain_matmul")  # fmt: skip
_names("bgemm", "bmm baddbmm addbmm einsum grouped_mm scaled_grouped_mm scaled_grouped_mm_v2")
_names("softmax_fwd", "softmax log_softmax safe_softmax masked_softmax")
_names("dropout", "dropout native_dropout native_dropout_backward bernoulli alpha_dropout feature_dropout "
       "fused_dropout rand rand_like randn randn_like randint uniform normal exponential "
       "random")  # fmt: skip
_names("embedding_fwd", "embedding embedding_bag index_select gather index take take_along_dim unsafe_index")
_names("embedding_bwd", "embedding_dense_backward embedding_bag_dense_backward embedding_backward "
       "embedding_renorm index_add index_put index_put_impl scatter scatter_add scatter_reduce "
       "index_copy index_fill gather_backward index_select_backward unsafe_index_put")  # fmt: skip
_names("cross_entropy", "nll_loss_forward nll_loss nll_loss_backward nll_loss2d_forward nll_loss2d_backward "
       "cross_entropy_loss binary_cross_entropy binary_cross_entropy_with_logits "
       "vocab_parallel_cross_entropy")  # fmt: skip
_names("reduction", "sum mean max min amax amin argmax argmin norm linalg_vector_norm prod std var var_mean "
       "std_mean any all logsumexp cumsum cumprod nansum count_nonzero topk sort argsort median mode "
       "aminmax mse_loss l1_loss smooth_l1_loss kl_div cummax cummin histc bincount unique "
       "unique2 l2norm multi_tensor_l2norm searchsorted kthvalue bucketize")  # fmt: skip
_names("copy", "copy to_copy clone contiguous cat stack concat split_with_sizes_copy split_copy chunk_cat "
       "slice_scatter select_scatter select_backward slice_backward repeat repeat_interleave roll flip tile "
       "constant_pad_nd transpose_copy permute_copy as_strided_copy expand_copy view_copy pad "
       "unfold_backward diagonal_copy slice_copy split_with_sizes unbind_copy diagonal_backward "
       "memcpy memcpy_dtod transpose_for_gemm as_strided_scatter t_copy unsqueeze_copy tril triu "
       "fused_all_gather_copy_out all_gather_copy_in split_with_sizes_out resize "
       "lift_fresh_copy")  # fmt: skip
_names("fill", "fill zero zeros zeros_like ones ones_like full full_like arange eye new_zeros "
       "new_ones new_full scalar_tensor linspace memset fill_diagonal tril_indices triu_indices")  # fmt: skip
_names("optimizer", "fused_adam fused_adamw fused_sgd fused_adagrad fused_lamb adam adamw sgd "
       "multi_tensor_adam multi_tensor_sgd distributed_fused_adam")  # fmt: skip
_names("quantize", "cast_fp8_tiles transpose_cast_fp8 cast_kept cast_back")
_names("elementwise", """
    add sub mul div neg abs exp exp2 expm1 log log2 log10 log1p sqrt rsqrt square pow reciprocal sin
    cos tan tanh sinh cosh asin acos atan atan2 erf erfc erfinv sigmoid relu gelu silu mish elu selu
    celu leaky_relu hardtanh hardswish hardsigmoid softplus threshold prelu rrelu glu swiglu geglu
    sign sgn floor ceil round trunc frac clamp clamp_min clamp_max maximum minimum fmax fmin where
    masked_fill masked_scatter masked_select addcmul addcdiv lerp eq ne lt le gt ge logical_and
    logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_not bitwise_xor isnan isinf
    isfinite remainder fmod floor_divide true_divide rsub sigmoid_backward tanh_backward
    gelu_backward silu_backward threshold_backward relu_backward hardtanh_backward
    leaky_relu_backward glu_backward elu_backward softplus_backward log_sigmoid_forward
    log_sigmoid_backward log_sigmoid nan_to_num polar view_as_complex mse_loss_backward lshift
    rshift bitwise_left_shift bitwise_right_shift float_power hypot copysign signbit angle real imag
    conj amp_update_scale bias_gelu_fwd bias_gelu_bwd bias_swiglu_fwd bias_swiglu_bwd swiglu_fwd
    swiglu_bwd bias_dropout_add_fwd bias_dropout_add_bwd bias_geglu_fwd bias_geglu_bwd rotary_fwd
    rotary_bwd rope_fwd rope_bwd apply_rotary_emb quantize dequantize cast
    amp_non_finite_check_and_unscale squared_relu bias_add
""")  # fmt: skip

_ATTENTION = r"(scaled_dot_product|flash|efficient|cudnn|fused|mem_eff|sdpa)\w*attention"

#: First match wins.  Names are normalised: no namespace, overload, leading or trailing underscores.
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), op_class)
    for pattern, op_class in (
        (_ATTENTION + r"\w*(backward|bwd)", "attention_bwd"),
        (r"(flash|efficient|cudnn|mem_eff)_?attn\w*(backward|bwd)|fmha\w*(backward|bwd)", "attention_bwd"),
        (_ATTENTION, "attention_fwd"),
        (r"(flash|efficient|cudnn|mem_eff)_?attn|fmha", "attention_fwd"),
        (r"foreach|multi_tensor_(scale|axpby|unscale)|amp_foreach", "foreach"),
        (r"softmax\w*(backward|bwd)", "softmax_bwd"),
        (r"softmax", "softmax_fwd"),
        (r"batch_?norm\w*(backward|bwd)", "batch_norm_bwd"),
        (r"batch_?norm", "batch_norm_fwd"),
        (r"(layer|rms|group|instance)_?norm\w*(backward|bwd)", "norm_bwd"),
        (r"(layer|rms|group|instance)_?norm", "norm_fwd"),
        (r"cross_entropy|nll_loss|softmax_loss", "cross_entropy"),
        (r"^table_lookup|split_embedding\w*_forward", "lookup_fwd"),
        (r"^table_update|split_embedding\w*_backward", "lookup_bwd"),
        (r"key_sort|radix_?sort", "key_sort"),
        (r"embedding\w*(backward|bwd)", "embedding_bwd"),
        (r"embedding|^lookup", "embedding_fwd"),
        (r"^(chunk_(scan|state|cumsum)|state_passing|bmm_chunk)_\w*(fwd|bwd)", "scan"),
        (r"^chunk_gated_delta_rule_|^(recompute_w_u_fwd|prepare_wy_repr_bwd)_kernel", "delta_rule"),
        (r"^chunk_(fwd_kernel_o|bwd_kernel_(dv_local|dqkwg))", "delta_rule"),
        (r"causal_conv1d", "short_conv"),
        (r"(^|_)conv(olution|_|\d|$)", "conv"),
        (r"(group|batch)\w*_?gemm", "bgemm"),
        (r"gemm|matmul|wgrad", "gemm"),
        (r"fused_\w*(adam|sgd|lamb)|^(adam|sgd|lamb)|optimizer", "optimizer"),
        (r"dropout_(backward|bwd)|^dropout|bernoulli|philox", "dropout"),
        (r"bias|gelu|silu|swiglu|relu|rotary|rope|residual_add|masked_fill", "elementwise"),
        (r"pointwise|elementwise", "elementwise"),
        (r"_copy$|^copy|^cat|^memcpy", "copy"),
        (r"(max|avg|adaptive)\w*_pool", "pool"),
        (r"nchw_to_nhwc|nhwc_to_nchw|nchwtonhwc|nhwctonchw", "layout"),
        (r"pool\w*|upsample|interpolate|grid_sampler|norm|reduce", "reduction"),
        (r"^zeros|^ones|^fill|^memset", "fill"),
    )
)


@lru_cache(maxsize=1 << 14)
def classify(op_name: str) -> str:
    """Cost class of an op: ``"aten::addmm.default"`` is "gemm".  "other" when nothing is known about it."""
    name = normalise(op_name)
    found = _EXACT.get(name)
    if found is not None:
        return found
    for pattern, op_class in _PATTERNS:
        if pattern.search(name):
            return op_class
    return "other"


def normalise(op_name: str) -> str:
    """Bare op name: no namespace, overload, or the underscores that mark private and in-place ops."""
    name = op_name.rsplit("::", 1)[-1]
    for namespace in ("aten.", "torch.", "prims.", "ops."):
        name = name.removeprefix(namespace)
    return name.split(".", 1)[0].strip("_").lower()
