"""torchvision beside a build of torch that its compiled operators are not for: the package imports.

Its wheels come with operators for boxes, built for CUDA.  Where they cannot be loaded, torchvision itself
does without all but those whose shapes it registers by name: they are declared, so that a call is an operator
without a kernel, as on any machine where the extension is missing.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

_SCHEMAS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}


def declare(extension: ModuleType) -> None:
    """Right after ``torchvision.extension`` has tried to load its operators."""
    loaded: Any = getattr(extension, "_has_ops", lambda: True)
    if not loaded():
        for name, schema in _SCHEMAS.items():
            torch.library.define(f"torchvision::{name}", schema)
