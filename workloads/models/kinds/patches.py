"""Images cut into patches that become tokens (arXiv 2010.11929).

Note [Order in memory]
    A convolution cuts the patches; its output, seen as tokens, lies channel by channel where images do
    (NCHW). Joined with a class token it is copied into the order of tokens; a model without one carries that
    order through all residual sums (TensorIterator keeps it), and each norm makes an ordered copy first.
"""

from __future__ import annotations

from workloads.models.elementary import norm_of_kind
from workloads.models.frozen import Size, SizeOrNone, Width
from workloads.models.images import convolution
from workloads.models.listed import BlockKind, BlockSpec, Passage, register
from workloads.models.tensors import compute


class PatchesSpec(BlockSpec):
    """Patches of ``size`` x ``size`` pixels to tokens of ``width``, ``extra`` learned ones in front.

    ``positions``: a learned one for each token is added, or for each patch ("patches"); ``norm``: a layer
    norm behind it.  ``bias``: of the patches' product.
    """

    size: Size = 16
    width: Width
    extra: SizeOrNone = 1
    positions: bool = True
    norm: bool = False
    bias: bool = True


def _patches(at: Passage, spec: PatchesSpec) -> None:
    module, tape, wide = at.module, at.tape, at.shard.wide_dtype
    y = convolution(
        at, at.x, spec.width, spec.size, stride=spec.size, bias=spec.bias, valid=True,
        module=f"{module}.proj",
    )  # fmt: skip
    batch, width, rows, columns = y.shape
    patches = y.like(batch, rows * columns, width)
    x = patches
    if spec.extra:
        x = patches.like(batch, rows * columns + spec.extra, width, dtype=wide)
        more, op = x.like(batch, spec.extra, width), tape.op()
        op.parameter(f"{module}.cls_token", spec.extra, width)
        op.run("aten::cat", [more, patches.like(*patches.shape, dtype=wide)], [x], module=module)
        op.back(
            compute("aten::sum.dim_IntList", [more], [more.like(1, spec.extra, width)], module=module),
            "weight",
        )
        op.back(
            compute("aten::_to_copy", [patches.like(*patches.shape, dtype=wide)], [patches], module=module)
        )
    if spec.positions:
        before, x = x, x.like(*x.shape, dtype=wide)
        row, op = x.like(1, *x.shape[1:]), tape.op()
        op.parameter(f"{module}.pos_embed", *x.shape[1:])
        op.run("aten::add.Tensor", [before, row], [x], module=module)
        op.back(compute("aten::sum.dim_IntList", [x], [row], module=module), "weight")
        op.accumulate(row.shape, wide, at.shard.main_grad_dtype, module)
    at.scattered = not spec.extra and not at.shard.software.channels_last
    at.x = x.like(*x.shape, dtype=wide)
    if spec.norm:
        norm_of_kind(tape, at.shard, at.x, f"{module}.norm_pre")


register(BlockKind("patches", PatchesSpec, _patches))
