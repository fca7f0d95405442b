"""The kernels of attention written with PyTorch's own ops, as flash attention's benchmark compares with."""

from __future__ import annotations

from simcore.cost.kernel import KernelShape, Shape, numel


def unfused_attention(
    batch: int, heads: int, seq: int, head_dim: int, dtype: str, *, causal: bool
) -> tuple[KernelShape, ...]:
    """Forward and backward of ``softmax(q k^T + mask) v`` from packed ``[batch, seq, 3, heads, head_dim]``.

    The mask is added as a tensor; backward gathers three gradients into a packed one.
    """
    rows = batch * heads
    part: Shape = (rows, seq, head_dim)
    scores: Shape = (rows, seq, seq)
    flops = 2 * numel(scores) * head_dim

    def product(left: Shape, right: Shape, out: Shape) -> KernelShape:
        return KernelShape("aten::bmm", "bgemm", dtype, (left, right), (out,), flops=flops)

    def kernel(name: str, op_class: str, inputs: tuple[Shape, ...], out: Shape) -> KernelShape:
        return KernelShape(name, op_class, dtype, inputs, (out,))

    gather = kernel("aten::clone", "copy", (part,), part)
    mask = (kernel("aten::add", "elementwise", (scores, (seq, seq)), scores),) if causal else ()
    forward = (
        gather, gather, product(part, part, scores), *mask,
        kernel("aten::_softmax", "softmax_fwd", (scores,), scores),
        gather, product(scores, part, part), gather,
    )  # fmt: skip
    backward = (
        gather, product(scores, part, part), product(part, part, scores),
        kernel("aten::_softmax_backward_data", "softmax_bwd", (scores, scores), scores),
        product(scores, part, part), product(scores, part, part),
        kernel("aten::stack", "copy", (part,) * 3, (3, *part)),
    )  # fmt: skip
    return (*forward, *backward)
