"""Which recipe of fp8 is in force, as Transformer Engine keeps it: recipes, contexts, shared maxima."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from simcore.records import dataclass
from workloads.tracing import kernels
from workloads.tracing.kernels import KernelCost
from workloads.tracing.stand_ins.refusal import NotStoodInError

#: Maxima that a product keeps: of input, weight and output; of the gradients of output and input.
_FORWARD_MAXIMA, _BACKWARD_MAXIMA = 3, 2


class Format(enum.Enum):
    """``transformer_engine.common.recipe.Format``."""

    E4M3 = "E4M3"
    E5M2 = "E5M2"
    HYBRID = "HYBRID"


class Recipe:
    """How numbers are scaled; says what it was made with."""

    kind = ""
    reduce_amax = True
    fp8_dpa = fp8_mha = False

    def __init__(self, *args: Any, **options: Any) -> None:
        self.args = args
        for name, value in options.items():
            setattr(self, name, value)

    def delayed(self) -> bool:
        """By maxima of earlier steps."""
        return self.kind == "delayed"

    def float8_current_scaling(self) -> bool:
        """By the tensor's own maximum."""
        return self.kind == "current"

    def float8_block_scaling(self) -> bool:
        """By blocks of 128 elements."""
        return self.kind == "blockwise"

    def mxfp8(self) -> bool:
        """By blocks of 32 elements."""
        return self.kind == "mxfp8"

    def nvfp4(self) -> bool:
        """In 4 bits."""
        return self.kind == "nvfp4"

    def custom(self) -> bool:
        """By the program's own code."""
        return self.kind == "custom"


_KINDS = {
    "DelayedScaling": "delayed",
    "Float8CurrentScaling": "current",
    "Float8BlockScaling": "blockwise",
    "MXFP8BlockScaling": "mxfp8",
    "NVFP4BlockScaling": "nvfp4",
    "CustomRecipe": "custom",
}
#: Recipes that programs name, each a class of its own.
RECIPES: dict[str, type] = {name: type(name, (Recipe,), {"kind": kind}) for name, kind in _KINDS.items()}


@dataclass
class _Scaling:
    """What an ``autocast`` says; ``maxima``: of the products since the last exchange."""

    recipe: Recipe
    group: Any
    maxima: int = 0
    begun: bool = False


#: In force now, from the outside in; None: switched off inside.
_stack: list[_Scaling | None] = []
#: What the last delayed scaling exchanges of gradients.
_last: _Scaling | None = None


@contextmanager
def autocast(
    enabled: bool = True,
    calibrating: bool = False,  # noqa: ARG001
    recipe: Recipe | None = None,
    amax_reduction_group: Any = None,
    _graph: bool = False,
    *,
    fp8_recipe: Recipe | None = None,
    fp8_group: Any = None,
) -> Iterator[None]:
    """``transformer_engine.pytorch.autocast`` (and ``fp8_autocast``)."""
    global _last
    chosen = recipe or fp8_recipe or RECIPES["DelayedScaling"]()
    if enabled and chosen.kind in ("nvfp4", "custom"):
        raise NotStoodInError(f"{chosen.kind} numbers: trace in bf16 or fp8, or describe the model")
    if enabled and chosen.fp8_mha:
        raise NotStoodInError("attention whose results are in fp8 (fp8_mha), only whose inputs are (fp8_dpa)")
    scaling = _Scaling(chosen, amax_reduction_group or fp8_group) if enabled else None
    _stack.append(scaling)
    try:
        yield
    finally:
        _stack.pop()
    if scaling is not None and not _stack and torch.is_grad_enabled() and scaling.maxima:
        _exchange(scaling, scaling.maxima * _FORWARD_MAXIMA)
        _last = scaling


def recipe_in_force(products: int = 1) -> str:
    """Of the ``products`` that run now: "delayed", "current", "blockwise", "mxfp8", or "" without fp8."""
    scaling = _stack[-1] if _stack else None
    if scaling is None:
        return ""
    if scaling.recipe.delayed():
        scaling.maxima += products
    return scaling.recipe.kind


def attends_in_fp8() -> bool:
    """Whether what attention multiplies is in fp8."""
    scaling = _stack[-1] if _stack else None
    return scaling is not None and bool(scaling.recipe.fp8_dpa)


def is_first_module() -> bool:
    """Whether the product that runs now is the first of its context: its backward pass is the last."""
    scaling = _stack[-1] if _stack else None
    if scaling is None or scaling.begun:
        return False
    scaling.begun = True
    return scaling.recipe.delayed()


def share_maxima() -> None:
    """Ranks agree on the maxima of gradients, behind a backward pass."""
    if _last is not None:
        _exchange(_last, _last.maxima * _BACKWARD_MAXIMA)


def _exchange(scaling: _Scaling, count: int) -> None:
    maxima = torch.empty(count, dtype=torch.float32, device="cuda")
    if scaling.recipe.reduce_amax and scaling.group is not None and dist.get_world_size(scaling.group) > 1:
        dist.all_reduce(maxima, op=dist.ReduceOp.MAX, group=scaling.group)
    scales = torch.empty_like(maxima)
    cost = KernelCost(op_class="elementwise")
    kernels.launch("fused_amax_and_scale_update", reads=[maxima], writes=[scales], cost=cost)


class FP8GlobalStateManager:
    """``transformer_engine.pytorch.fp8.FP8GlobalStateManager``: what is in force."""

    @classmethod
    def is_fp8_enabled(cls) -> bool:
        """Whether products are in fp8 now."""
        return bool(_stack and _stack[-1] is not None)

    @classmethod
    def is_fp8_calibration(cls) -> bool:
        """Never."""
        return False

    with_fp8_parameters = is_first_fp8_module = is_fp8_calibration

    @classmethod
    def get_fp8_recipe(cls) -> Recipe:
        """The one in force, or the default."""
        scaling = _stack[-1] if _stack else None
        found: Recipe = RECIPES["DelayedScaling"]() if scaling is None else scaling.recipe
        return found

    @classmethod
    def reset(cls) -> None:
        """Nothing is kept."""

    @classmethod
    def set_skip_fp8_weight_update_tensor(cls, skip: bool) -> None:
        """Weights are cast where the program says so."""
