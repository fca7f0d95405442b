"""Products of all experts of a rank at once, and what is cast for them."""

from __future__ import annotations

from dataclasses import replace

from workloads.models.dispatch import dispatches_fp8
from workloads.models.fp8 import (
    cast_for_product,
    casts,
    casts_at_use,
    column_casts,
    gathered,
    operand,
    recipe_of,
    requantised,
    sms_left,
    weight_product_name,
)
from workloads.models.local import Shard
from workloads.models.op_tape import Op, OpTape, TapedLaunch
from workloads.models.spec import ModelSpec, MoeSpec
from workloads.models.tensors import Tensor, compute


def fuses_mlp(shard: Shard, model: ModelSpec, moe: MoeSpec) -> bool:
    """Whether experts' products gate and cast what they write: no kernel stands between the two."""
    fused = shard.software.moe_fused_mlp and shard.software.moe_grouped_gemm
    return bool(fused and shard.narrow and model.gated and not moe.bias)


def grouped(
    tape: OpTape, shard: Shard, x: Tensor, local: int, out_features: int, module: str, *,
    gated: Tensor | None = None, cast: bool = True,
) -> Tensor:  # fmt: skip
    """Rows of each expert times its weight.

    ``gated``: the product also gates what it writes and casts that in both orders, and the gradient of what
    it writes comes cast (``cast`` False: the product that does so, and whose input comes cast).
    """
    tokens, in_features = x.shape
    fused = gated is not None or not cast
    y, op = x.like(tokens, out_features), tape.op()
    # A mean: no odd number of rows misaligns a product, as features are what lies side by side in memory.
    each = max(1, tokens // local if tokens < 8 * local else tokens // (8 * local) * 8)
    sent = dispatches_fp8(shard)
    if casts_at_use(shard):
        # What was dispatched is in fp8: the first product's input, the gradient of the last one's output.
        op.launch(TapedLaunch(requantised(x.like(local, in_features, out_features), module, kept=True)))
        if not (sent and module.endswith("fc1")):
            op.launch(TapedLaunch(cast_for_product(x, module)))
        if not (sent and module.endswith("fc2")):
            op.back(cast_for_product(y, module), "input")
    elif shard.narrow:
        # A delayed scale allows one pass over all experts' rows; else each expert's rows are cast apart.
        apart = local if recipe_of(shard) != "delayed" and not fused else 1
        for kernel in casts(shard, x, module) if cast else ():
            op.launch(TapedLaunch(replace(kernel, launches=apart)))
        for kernel in (
            *(casts(shard, y, module) if gated is None else ()),
            *column_casts(shard, y, module),
            *column_casts(shard, x, module),
        ):
            op.back(replace(kernel, launches=apart))
    saved = gathered(shard, x, shard.narrow).num_bytes
    op.parameter(f"{module}.weight", local, out_features, in_features, group="expert_dp")
    wide = x.like(local, in_features, out_features)
    main_grad = Tensor((local, out_features, in_features), shard.main_grad_dtype)
    ins, dy = x.like(local, each, in_features), x.like(local, each, out_features)
    _products(shard, op, ins, wide, dy, module, "", saved, gated)
    turned = wide.like(local, out_features, in_features)
    # With its gate's backward the product writes both halves' gradients, in two orders.
    _products(
        shard, op, dy, turned, ins, module, "input", 0, x.like(tokens, 2 * in_features) if not cast else None
    )
    if casts_at_use(shard):
        op.back(requantised(y, module, kept=sent and module.endswith("fc2")), "weight")
        op.back(requantised(x, module, kept=True), "weight")
    _products(shard, op, dy.like(local, out_features, each), ins, main_grad, module, "weight")
    return y if gated is None else gated


def _products(
    shard: Shard, op: Op, a: Tensor, b: Tensor, out: Tensor, module: str, role: str, saved: int = 0,
    beside: Tensor | None = None,
) -> None:  # fmt: skip
    """One grouped kernel, or one for each expert; forward for role "".

    ``beside``: what it writes in two orders for the products that come next, kept instead of cast again.
    """
    local, narrow = a.shape[0], shard.narrow
    blocks = "blockwise_" if narrow and recipe_of(shard) == "blockwise" else ""
    count, name, op_class = 1, f"{blocks}grouped_gemm{sms_left(shard)}", "bgemm"
    if not shard.software.moe_grouped_gemm:
        count, name, op_class = local, "aten::mm", "gemm"
        a, b, out = (tensor.like(*tensor.shape[1:]) for tensor in (a, b, out))
    added: list[Tensor] = []
    if role == "weight" and shard.software.grad_accumulation_fusion:
        name = weight_product_name(shard, narrow, grouped=count == 1)
        added = [out]
    kernel = compute(
        name, [operand(a, narrow), operand(b, narrow), *added], [out], op_class=op_class,
        flops=2 * a.numel * b.shape[-1], module=module,
    )  # fmt: skip
    kept = 0
    if beside is not None:
        kept = 0 if role else out.num_bytes
        kernel = replace(
            kernel, bytes_written=kept + 2 * operand(beside, narrow).num_bytes,
            bytes_read=kernel.bytes_read + (beside.num_bytes if role else 0),
        )  # fmt: skip
    elif count == 1 and shard.software.moe_launch_each and not shard.software.moe_fused_mlp:
        kernel = replace(kernel, name=f"{kernel.name}.each", launches=local)
    for number in range(count):
        if role == "":
            op.launch(
                TapedLaunch(
                    kernel, role="weight", saved_inputs=0 if number else saved, saved_outputs=kept,
                )
            )  # fmt: skip
        else:
            op.back(kernel, "weight" if role == "weight" else "input")
