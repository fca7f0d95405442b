"""torchvision's operators for boxes: shapes, also beside a build of torch that its compiled ones are not for.

Its wheels are built for CUDA.  Where the operators cannot be loaded they are declared; torchvision itself
knows their shapes.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from workloads.tracing.fake.host_values import num_selected

_POOLED = "float spatial_scale, SymInt pooled_height, SymInt pooled_width"
_IMAGE = "SymInt batch_size, SymInt channels, SymInt height, SymInt width"
_CONVOLVED = (
    "Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, SymInt stride_w, "
    "SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, SymInt offset_groups, "
    "bool use_mask"
)
_BOXES = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_SCHEMAS = {
    "nms": _BOXES,
    "qnms": _BOXES,
    "roi_align": f"(Tensor input, Tensor rois, {_POOLED}, int sampling_ratio, bool aligned) -> Tensor",
    "_roi_align_backward": (
        f"(Tensor grad, Tensor rois, {_POOLED}, {_IMAGE}, int sampling_ratio, bool aligned) -> Tensor"
    ),
    "qroi_align": (
        "(Tensor input, Tensor rois, float input_scale, int input_zero_point, float rois_scale, "
        f"int rois_zero_point, {_POOLED}, int sampling_ratio, bool aligned) -> Tensor"
    ),
    "ps_roi_align": f"(Tensor input, Tensor rois, {_POOLED}, int sampling_ratio) -> (Tensor, Tensor)",
    "_ps_roi_align_backward": (
        f"(Tensor grad, Tensor rois, Tensor mapping, {_POOLED}, int sampling_ratio, {_IMAGE}) -> Tensor"
    ),
    "roi_pool": f"(Tensor input, Tensor rois, {_POOLED}) -> (Tensor, Tensor)",
    "_roi_pool_backward": f"(Tensor grad, Tensor rois, Tensor argmax, {_POOLED}, {_IMAGE}) -> Tensor",
    "ps_roi_pool": f"(Tensor input, Tensor rois, {_POOLED}) -> (Tensor, Tensor)",
    "_ps_roi_pool_backward": f"(Tensor grad, Tensor rois, Tensor mapping, {_POOLED}, {_IMAGE}) -> Tensor",
    "deform_conv2d": f"({_CONVOLVED}) -> Tensor",
    "_deform_conv2d_backward": f"(Tensor grad, {_CONVOLVED}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
}


def declare(extension: ModuleType) -> None:
    """Right after ``torchvision.extension`` has tried to load its operators."""
    loaded: Any = getattr(extension, "_has_ops", lambda: True)
    if not loaded():
        for name, schema in _SCHEMAS.items():
            torch.library.define(f"torchvision::{name}", schema)
        vars(extension).update(_has_ops=lambda: True, _check_cuda_version=lambda: -1)
        torch.library.register_autograd("torchvision::roi_align", _align_back, setup_context=_keep_boxes)
        for name in ("ps_roi_align", "roi_pool", "ps_roi_pool", "deform_conv2d"):
            torch.library.register_autograd(f"torchvision::{name}", _refuse)


def count_boxes(_registrations: ModuleType) -> None:
    """Right after torchvision has registered shapes, of which those that follow from values have no size."""
    torch.library.register_fake("torchvision::nms", _suppressed, allow_override=True)


def _suppressed(dets: torch.Tensor, *_: Any) -> torch.Tensor:
    """Which boxes stay: all of them, unless the user says which share."""
    kept = num_selected(dets.new_empty(dets.shape[0], dtype=torch.bool))
    return dets.new_empty(kept, dtype=torch.int64)


def _keep_boxes(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:  # noqa: ARG001
    image, boxes, *ctx.how = inputs
    ctx.shape = image.shape
    ctx.save_for_backward(boxes)


def _align_back(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    pooled, sampled = ctx.how[:3], ctx.how[3:]
    backward: Any = torch.ops.torchvision._roi_align_backward
    (boxes,) = ctx.saved_tensors
    return (backward(grad, boxes, *pooled, *ctx.shape, *sampled), *(None,) * 6)


def _refuse(*_: Any) -> None:
    raise NotImplementedError("torchvision's operators are not those of this build of torch: no gradients")
