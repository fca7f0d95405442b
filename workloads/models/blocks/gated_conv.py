"""Gated short convolutions in place of attention (LFM2).

A projection to three parts, of which one weighs what a convolution over a few tokens reads and one what it
writes, and a projection back, as transformers builds them (models/lfm2/modeling_lfm2.py, Lfm2ShortConv), by
causal_conv1d's kernels.  Channels are dealt out over tensor-parallel ranks: nothing mixes them in between.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from simcore.errors import InputError
from workloads.models.block import LayerBlock, register
from workloads.models.frozen import Frozen, Size
from workloads.models.linear import Linear, column_parallel, row_parallel
from workloads.models.local import Shard
from workloads.models.op_tape import OpTape
from workloads.models.spec import ModelSpec
from workloads.models.tensors import Tensor, compute

KEY: Final = "gated_conv"


class GatedConvSpec(Frozen):
    """``tokens`` that the convolution sees: a token and those before it."""

    tokens: Size = 3


def _sizes(model: ModelSpec) -> GatedConvSpec:
    sizes: GatedConvSpec = getattr(model, KEY)
    return sizes


def _gated_conv(
    tape: OpTape, shard: Shard, model: ModelSpec, x: Tensor, module: str, *, index: int, causal: bool
) -> Tensor:
    del index, causal  # all layers are alike, and every token is of earlier ones
    sizes = _sizes(model)
    if shard.cp > 1:
        raise InputError(f"{model.name}: parallel.cp={shard.cp}: gated convolutions are not dealt out")
    joined = column_parallel(tape, shard, x, 3 * model.hidden, Linear(f"{module}.in_proj"))
    part = joined.like(joined.shape[0], model.hidden // shard.tp)
    _weighed(tape, part, module, kept=joined.num_bytes, whole=joined)
    op, filters = tape.op(), part.like(part.shape[1], sizes.tokens)
    op.run("causal_conv1d_fwd_kernel", [part, filters], [part], op_class="short_conv", module=module,
           saved_inputs=part.num_bytes)  # fmt: skip
    wide = replace(filters, dtype="float32")
    op.back(compute("causal_conv1d_bwd_kernel", [part, part, filters], [part, wide], op_class="short_conv",
                    module=module))  # fmt: skip
    of_rank = (part.shape[1], 1, sizes.tokens)
    op.parameter(f"{module}.conv.weight", *of_rank)
    op.accumulate(of_rank, part.dtype, shard.main_grad_dtype, module)
    _weighed(tape, part, module, kept=part.num_bytes)
    return row_parallel(tape, shard, part, model.hidden, Linear(f"{module}.out_proj"))


def _weighed(tape: OpTape, part: Tensor, module: str, *, kept: int, whole: Tensor | None = None) -> None:
    """A product of two parts, of which backward needs both; gradients of all three parts are put side by
    side in the gradient of ``whole``.
    """
    op = tape.op()
    op.run("aten::mul", [part, part], [part], module=module, saved_inputs=kept)
    for _ in range(2):
        op.back(compute("aten::mul", [part, part], [part], module=module))
    if whole is not None:
        op.back(compute("aten::cat", [whole], [whole], module=module))


def _multiply_adds(model: ModelSpec, *_: object) -> float:
    return float(model.hidden * (4 * model.hidden + _sizes(model).tokens))


register(
    LayerBlock(
        KEY, "attention", _gated_conv, _multiply_adds, key=KEY, spec=GatedConvSpec, adds_bias=False,
        symbol="C", module="conv", norm="operator_norm",
    )
)  # fmt: skip
