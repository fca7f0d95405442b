from __future__ import annotations

import pytest

from simcore.cost import OP_CLASSES, classify
from simcore.cost.kernel import FORMULAS
from simcore.cost.parameters import load_parameters
from simcore.tables import names

NAMES = {
    "gemm": "aten::mm.default aten::addmm.default aten.linear.default wgrad_gemm_accum_fp32",
    "bgemm": "aten::bmm.default aten::baddbmm.default grouped_gemm",
    "attention_fwd": (
        "aten::_scaled_dot_product_flash_attention.default flash_attention_fwd "
        "aten::_efficient_attention_forward.default "
        "aten::_scaled_dot_product_cudnn_attention.default flash_attn_fwd"
    ),
    "attention_bwd": (
        "aten::_scaled_dot_product_flash_attention_backward.default flash_attention_bwd "
        "aten::_efficient_attention_backward.default"
    ),
    "elementwise": (
        "aten::add.Tensor aten::mul_.Tensor aten::gelu.default aten::gelu_backward.default "
        "aten::masked_fill.Scalar bias_gelu_fwd bias_gelu_bwd bias_dropout_add_fwd "
        "bias_dropout_add_bwd aten::pow.Tensor_Scalar aten::where.self "
        "aten::tanh_backward.default aten::exp_.default aten::div_.Tensor aten::rsqrt.default "
        "rope_fwd"
    ),
    "reduction": (
        "aten::sum.dim_IntList aten::mean.dim aten::max.dim aten::linalg_vector_norm.default "
        "aten::argmax.default aten::amax.default"
    ),
    "softmax_fwd": (
        "aten::_softmax.default aten::_log_softmax.default scaled_masked_softmax_fwd "
        "scaled_upper_triang_masked_softmax_fwd"
    ),
    "softmax_bwd": (
        "aten::_softmax_backward_data.default aten::_log_softmax_backward_data.default "
        "scaled_masked_softmax_bwd"
    ),
    "norm_fwd": ("aten::native_layer_norm.default aten::_fused_rms_norm.default layer_norm_fwd"),
    "norm_bwd": ("aten::native_layer_norm_backward.default layer_norm_bwd"),
    "embedding_fwd": (
        "aten::embedding.default aten::index.Tensor aten::index_select.default aten::gather.default"
    ),
    "embedding_bwd": (
        "aten::embedding_dense_backward.default aten::index_put_.default aten::index_add.default"
    ),
    "cross_entropy": (
        "aten::nll_loss_forward.default aten::nll_loss_backward.default vocab_parallel_cross_entropy"
    ),
    "dropout": ("aten::native_dropout.default aten::native_dropout_backward.default aten::bernoulli_.float"),
    "optimizer": "aten::_fused_adam_.default aten::_fused_adamw_.tensor_lr fused_adam",
    "foreach": (
        "aten::_foreach_mul_.Scalar aten::_foreach_norm.Scalar "
        "aten::_amp_foreach_non_finite_check_and_unscale_.default"
    ),
    "copy": (
        "aten::copy_.default aten::_to_copy.default aten::clone.default aten::cat.default "
        "aten::split_with_sizes_copy.out aten::tril.default"
    ),
    "transpose": "",
    "fill": "aten::zero_.default aten::fill_.Scalar aten::zeros_like.default aten::arange.start",
    "conv": ("aten::convolution.default aten::convolution_backward.default aten::cudnn_convolution.default"),
    "layout": "nchw_to_nhwc cudnn::ops::nhwcToNchwKernel",
    "pool": "aten::max_pool2d_with_indices.default aten::avg_pool2d.default",
    "batch_norm_fwd": "aten::native_batch_norm.default aten::cudnn_batch_norm.default",
    "batch_norm_bwd": "aten::native_batch_norm_backward.default aten::cudnn_batch_norm_backward.default",
    "lookup_fwd": "table_lookup.zipf=1.05 split_embedding_codegen_forward_unweighted_kernel",
    "lookup_bwd": "table_update.adagrad split_embedding_backward_codegen_sgd_unweighted_exact_warp",
    "key_sort": "key_sort cub::DeviceRadixSortOnesweepKernel",
    "quantize": "cast_fp8_tiles transpose_cast_fp8",
    "scan": "chunk_scan_fwd chunk_state_bwd_db state_passing_fwd",
    "delta_rule": "chunk_gated_delta_rule_fwd_kernel_h chunk_fwd_kernel_o recompute_w_u_fwd_kernel",
    "short_conv": "causal_conv1d_fwd causal_conv1d_bwd",
    "other": "aten::_fft_c2c.default frobnicate",
}


@pytest.mark.parametrize(
    ("op_class", "name"), [(c, name) for c, names in NAMES.items() for name in names.split()]
)
def test_op_names(op_class: str, name: str) -> None:
    assert classify(name) == op_class


def test_every_class_has_a_formula_and_nothing_else_does() -> None:
    assert set(FORMULAS) == set(OP_CLASSES) == set(NAMES)


@pytest.mark.parametrize("generation", names("hardware_profiles", "cost"))
def test_every_streaming_class_has_constants_in_every_generation(generation: str) -> None:
    special = {"gemm", "bgemm", "attention_fwd", "attention_bwd", "conv", "other"}
    special |= {"layout", "pool", "batch_norm_fwd", "batch_norm_bwd"}  # of cuDNN, see convolution.py
    special |= {"lookup_fwd", "lookup_bwd", "key_sort"}  # see lookups.py
    special |= {"scan", "delta_rule", "short_conv"}  # see scan.py
    assert set(load_parameters(generation).memory.classes) == set(OP_CLASSES) - special
