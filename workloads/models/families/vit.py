"""Vision transformers (arXiv 2010.11929): patches of images to classes."""

from __future__ import annotations

from simcore.errors import InputError
from workloads.models.check import multiple
from workloads.models.elementary import dropout
from workloads.models.family import Family, register
from workloads.models.linear import Linear, linear
from workloads.models.local import Shard
from workloads.models.loss import small_loss
from workloads.models.op_tape import OpTape
from workloads.models.spec import ModelSpec
from workloads.models.tensors import Tensor, compute

_CHANNELS = 3


def _patches(tape: OpTape, shard: Shard, model: ModelSpec, x: Tensor) -> int:
    """A convolution whose stride is its size is a product over patches; then class token and positions."""
    name, width = "embedding.patch_embedding", _CHANNELS * model.patch_size**2
    patches = shard.tensor(shard.micro_batch * model.num_patches, width)
    op = tape.op()
    op.run("aten::im2col", [patches], [patches], op_class="copy", module=name)
    linear(tape, shard, patches, model.hidden, Linear(name, bias=True, fp8=False, replicated=True))
    op = tape.op()
    op.parameter("embedding.class_token", model.hidden, tp_duplicated=shard.sequence_parallel)
    op.run("aten::cat", [x], [x], module=name)
    first = x.like(shard.micro_batch, model.hidden)
    op.back(compute("aten::sum.dim_IntList", [first], [x.like(model.hidden)], module=name), "weight")
    op, rows = tape.op(), x.like(shard.seq, model.hidden)
    op.parameter("embedding.position_embeddings", *rows.shape, tp_duplicated=shard.sequence_parallel)
    op.run("aten::add.Tensor", [x, rows], [x], module="embedding")
    op.back(compute("aten::sum.dim_IntList", [x], [rows], module="embedding"), "weight")
    op.accumulate(rows.shape, shard.dtype, shard.main_grad_dtype, "embedding")
    dropout(tape, model, x, "embedding.embedding_dropout")
    return patches.num_bytes


def _classes(tape: OpTape, shard: Shard, model: ModelSpec, x: Tensor) -> None:
    """The class token to classes."""
    first = x.like(shard.micro_batch, model.hidden)
    if model.num_classes:
        head_layer = Linear("head", bias=True, fp8=False, replicated=True)
        small_loss(tape, linear(tape, shard, first, model.num_classes, head_layer))


def _multiply_adds(model: ModelSpec, seq: int, decoder_seq: int, causal_once: bool) -> float:
    del seq, decoder_seq, causal_once
    return (
        model.num_patches * _CHANNELS * model.patch_size**2 * model.hidden + model.hidden * model.num_classes
    )


def _check(model: ModelSpec, where: str) -> None:
    for key in ("image_size", "patch_size"):
        if not getattr(model, key):
            raise InputError(f"{where}.{key}: missing; a ViT needs it")
    multiple(f"{where}.image_size", model.image_size, "patch_size", model.patch_size)


register(
    Family(
        "vit", _patches, _classes, _multiply_adds, has_tokens=False, last_stack="encoder", check=_check,
        sequence=lambda model, _: model.num_patches + 1,
    )
)  # fmt: skip
