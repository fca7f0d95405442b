"""Parameters in fp8 (``fp8_model_init``, Megatron's ``--fp8-param-gather``): 8 bits as rows, 8 bits turned.

A parameter says that it has 16 bits and keeps none.  Its rows are what ranks gather; they are turned once
they have arrived (recipes by 32 elements gather 16 bits and are cast from them).  Masters are cast shard by
shard, by maxima that all ranks of a group agree on (TransformerEngine, pytorch/tensor/utils.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from workloads.tracing import kernels
from workloads.tracing.kernels import KernelCost
from workloads.tracing.stand_ins.refusal import NotStoodInError
from workloads.tracing.stand_ins.transformer_engine.quantisation import RECIPES, Recipe

#: Recipes of parameters that are made now, from the outside in, and whether first values are kept; None: off.
_making: list[tuple[Recipe, bool] | None] = []
#: Elements along one side of a block that shares a scale.
_SIDE = 128
#: What may be called on a parameter although it ends as what writes does.
_HARMLESS = frozenset({"requires_grad_", "copy_", "detach_", "retains_grad_", "__setstate__"})


@contextmanager
def quantized_model_init(
    enabled: bool = True,
    recipe: Recipe | None = None,
    preserve_high_precision_init_val: bool = False,
) -> Iterator[None]:
    """``transformer_engine.pytorch.quantized_model_init`` (and ``fp8_model_init``)."""
    chosen = recipe or RECIPES["DelayedScaling"]()
    if enabled and chosen.kind in ("nvfp4", "custom"):
        raise NotStoodInError(f"parameters in {chosen.kind} numbers")
    _making.append((chosen, preserve_high_precision_init_val) if enabled else None)
    try:
        yield
    finally:
        _making.pop()


class QuantizedTensor(torch.nn.Parameter):
    """What all of them share."""

    recipe: str
    _rowwise_data: torch.Tensor
    _columnwise_data: torch.Tensor
    _first: torch.Tensor

    @property
    def data(self) -> Any:  # type: ignore[override]
        """Itself: what is copied there is cast."""
        return self

    def detach(self) -> Any:
        """Its rows."""
        return self._rowwise_data

    def copy_(self, source: torch.Tensor, non_blocking: bool = False) -> Any:  # noqa: ARG002
        """Cast ``source``."""
        _launch("cast_transpose_fp8", [source], [self._rowwise_data, self._columnwise_data])
        return self

    def dequantize(self, *, dtype: torch.dtype | None = None) -> torch.Tensor:
        """In more bits."""
        found = self._rowwise_data.new_empty(self.shape, dtype=dtype or self.dtype)
        _launch("dequantize_fp8", [self._rowwise_data], [found])
        return found

    def float(self) -> Any:
        """In 32 bits."""
        return self.dequantize(dtype=torch.float32)

    def get_high_precision_init_val(self) -> torch.Tensor:
        """What it was made of, on the host."""
        return self._first

    def clear_high_precision_init_val(self) -> None:
        """It is kept no longer."""
        del self._first

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Updates by torch's own operators would find nothing to update."""
        name = getattr(func, "__name__", "")
        if name.endswith("_") and not name.endswith("__") and name not in _HARMLESS:
            raise NotStoodInError(
                f"{name} on parameters in fp8: only Megatron's distributed optimizer updates them"
            )
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]


_CLASSES = {
    "delayed": type("Float8Tensor", (QuantizedTensor,), {}),
    "blockwise": type("Float8BlockwiseQTensor", (QuantizedTensor,), {}),
    "mxfp8": type("MXFP8Tensor", (QuantizedTensor,), {}),
}
_CLASSES["current"] = _CLASSES["delayed"]
TENSORS = {"QuantizedTensor": QuantizedTensor, **{one.__name__: one for one in _CLASSES.values()}}


def quantised(tensor: torch.Tensor) -> Any:
    """A parameter like ``tensor``, in fp8 where parameters are made so now; else None."""
    making = _making[-1] if _making else None
    if making is None or tensor.device.type == "meta":
        return None
    recipe, keep = making
    nothing = tensor.new_empty(()).expand(tensor.shape)
    made: Any = torch.Tensor._make_subclass(_CLASSES[recipe.kind], nothing, True)
    made.recipe = recipe.kind
    made._rowwise_data = tensor.new_empty(tensor.shape, dtype=torch.uint8)
    made._columnwise_data = tensor.new_empty(tensor.shape[::-1], dtype=torch.uint8)
    if keep:
        made._first = tensor.detach().cpu()
    return made


def replace_raw_data(tensor: Any, data: torch.Tensor) -> None:
    """``transformer_engine.pytorch.tensor.utils.replace_raw_data``: the rows move into a buffer."""
    data.copy_(tensor._rowwise_data)
    tensor._rowwise_data = data


def cast_master_weights_to_fp8(
    model_weights: Sequence[Any],
    master_weights: Sequence[torch.Tensor | None],
    start_offsets: Sequence[int | None],
    group: Any,
    fsdp_shard_model_weights: Any = None,
    manual_post_all_gather_processing: bool = False,  # noqa: ARG001
) -> None:
    """``...tensor.utils.cast_master_weights_to_fp8``: this rank's shards, by maxima of all ranks."""
    if fsdp_shard_model_weights is not None:
        raise NotStoodInError("parameters in fp8 under Megatron's own FSDP")
    by_recipe: dict[str, list[tuple[Any, torch.Tensor | None, int]]] = {}
    for model, master, start in zip(model_weights, master_weights, start_offsets, strict=True):
        by_recipe.setdefault(model.recipe, []).append((model, master, start or 0))
    for recipe, weights in by_recipe.items():
        if recipe == "mxfp8":
            raise NotStoodInError("parameters in mxfp8 whose shards are cast before they are gathered")
        blocks = [_blocks(model.shape) if recipe == "blockwise" else 1 for model, *_ in weights]
        maxima = weights[0][0]._rowwise_data.new_empty(sum(blocks), dtype=torch.float32)
        own = [
            (model, given, start) for model, given, start in weights if given is not None and given.numel()
        ]
        if recipe != "delayed":  # earlier maxima say how these are scaled
            for _, master, _ in own:
                _launch("compute_amax_fp8", [master], [maxima], "reduction")
            dist.all_reduce(maxima, op=dist.ReduceOp.MAX, group=group)
            _launch("compute_scale_fp8", [maxima], [torch.empty_like(maxima)])
        for model, master, start in own:
            rows = model._rowwise_data.view(-1)[start : start + master.numel()]
            _launch("cast_fp8", [master], [rows])
        if recipe == "delayed":
            dist.all_reduce(maxima, op=dist.ReduceOp.MAX, group=group)


def post_all_gather_processing(model_weights: Sequence[Any]) -> None:
    """``...tensor.utils.post_all_gather_processing``: rows that have arrived are turned."""
    for one in model_weights:
        if one.recipe != "mxfp8":
            _launch("transpose_fp8", [one._rowwise_data], [one._columnwise_data])


def _blocks(shape: Sequence[int]) -> int:
    rows, columns = shape
    return -(-rows // _SIDE) * -(-columns // _SIDE)


def _launch(name: str, reads: list[Any], writes: list[torch.Tensor], op_class: str = "elementwise") -> None:
    kernels.launch(name, reads=reads, writes=writes, cost=KernelCost(op_class=op_class))


UTILITIES = {
    one.__name__: one for one in (replace_raw_data, cast_master_weights_to_fp8, post_all_gather_processing)
}
