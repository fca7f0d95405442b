"""Autocast: parameters and residual sums in fp32, products in 16 bits, casts where they meet.

What torch.autocast does to eager code: a product reads copies of its input and of its parameters, made where
it stands; norms, losses and sums stay wide.  Backward casts each gradient back.  A compiler casts within the
kernel that makes what a product reads; parameters are cast by kernels of their own all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from workloads.models.tensors import Tensor, compute

if TYPE_CHECKING:
    from workloads.models.local import Shard
    from workloads.models.op_tape import Op, OpTape


def narrowed(tape: OpTape, shard: Shard, x: Tensor, module: str) -> Tensor:
    """``x`` as products read it."""
    if x.dtype == shard.dtype:
        return x
    wanted, op = x.like(*x.shape, dtype=shard.dtype), tape.op()
    if not shard.software.compiled:
        op.run("aten::_to_copy", [x], [wanted], module=module)
        op.back(compute("aten::_to_copy", [wanted], [x], module=module), "input")
    return wanted


def cast_parameters(op: Op, shard: Shard, shapes: Sequence[tuple[int, ...]], module: str) -> None:
    """Copies of a layer's parameters in 16 bits, and their gradients in 32."""
    if not shard.casts:
        return
    for shape in reversed(shapes):
        wide, small = Tensor(shape, "float32"), Tensor(shape, shard.dtype)
        op.run("aten::_to_copy", [wide], [small], module=module)
        op.behind_weight(compute("aten::_to_copy", [small], [wide], module=module))
