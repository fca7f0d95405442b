"""Transformer layers within a list of blocks: over patches, over features, wherever tokens are."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from simcore.errors import InputError
from workloads.models.check import check_model
from workloads.models.frozen import Heads, Layers, Width
from workloads.models.layers import write_layer
from workloads.models.listed import BlockKind, BlockSpec, Passage, register
from workloads.models.spec import ModelSpec


class TransformerSpec(BlockSpec):
    """``layers`` of attention and a feed-forward block; widths as those of a transformer model.

    ``parallel``: so many of each side by side, added up (arXiv 2203.09795).
    """

    layers: Layers
    hidden: Width
    heads: Heads
    ffn: Width
    activation: Literal["gelu", "quick_gelu", "relu", "silu", "squared_relu"] = "gelu"
    gated: bool = False
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    bias: bool = True
    layer_scale: bool = False
    parallel: Layers = 1

    @property
    def times(self) -> int:
        """Each layer is a part of its own."""
        return self.layers

    def as_model(self) -> ModelSpec:
        """The same dimensions as of a model, whose parts write themselves."""
        return ModelSpec(
            family="bert", layers=self.layers, hidden=self.hidden, heads=self.heads, ffn=self.ffn,
            activation=self.activation, gated=self.gated, norm=self.norm, bias=self.bias,
            layer_scale=self.layer_scale, positions="none", vocab=1, tied_embeddings=False,
        )  # fmt: skip


def _layer(at: Passage, spec: TransformerSpec) -> None:
    x, model = at.x, spec.as_model()
    batch, tokens, width = x.shape
    if width != spec.hidden:
        raise InputError(
            f"{at.module}: hidden={spec.hidden}, but its tokens are {width} wide; nearest: {width}"
        )
    tp = at.shard.tp  # samples of that many ranks, of whose tokens each has its own
    if spec.heads % tp:
        near = max(size for size in range(1, spec.heads + 1) if spec.heads % size == 0 and tp % size == 0)
        raise InputError(f"{at.module}: {spec.heads} heads on {tp} ranks of strategy.transformer=tp; nearest:"
                         f" strategy.local={near}")  # fmt: skip
    shard = replace(
        at.shard, micro_batch=batch * tp, seq=tokens, scattered=at.scattered, sequence_parallel=tp > 1
    )
    stream = x.like(batch * tokens, width)
    for number in range(spec.parallel):
        name = f"{at.module}.{number}" if spec.parallel > 1 else at.module
        write_layer(at.tape, shard, model, stream, name, at.index)


def _check(spec: TransformerSpec, where: str) -> None:
    check_model(spec.as_model(), where)


register(BlockKind("transformer", TransformerSpec, _layer, "transformer", splits=True, check=_check))
