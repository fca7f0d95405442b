"""A whole model as pieces."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import replace

from workloads.models.block import blocks_of
from workloads.models.check import check_model
from workloads.models.embeddings import embedding
from workloads.models.families.t5 import decoder_layer
from workloads.models.flops import model_flops
from workloads.models.heads import head
from workloads.models.layers import layer
from workloads.models.listed import BlockModel
from workloads.models.listed_pieces import listed_pieces
from workloads.models.local import Shard
from workloads.models.model import AnyModel
from workloads.models.op_tape import Recompute
from workloads.models.pieces import ModelPiece, ModelPieces
from workloads.models.spec import ModelSpec


def pieces_of(
    model: AnyModel, shard: Shard, *, recomputed: Collection[int] | None = None, one_stage: bool = False
) -> ModelPieces:
    """All pieces of any model, as :func:`model_pieces` and :func:`listed_pieces` have them."""
    if isinstance(model, BlockModel):
        return listed_pieces(model, shard, recomputed=recomputed)
    assert isinstance(model, ModelSpec)
    return model_pieces(model, shard, recomputed=recomputed, one_stage=one_stage)


def model_pieces(
    model: ModelSpec, shard: Shard, *, recomputed: Collection[int] | None = None, one_stage: bool = False
) -> ModelPieces:
    """All pieces of a transformer as one rank runs them; equal layers are one object.

    ``shard.recompute`` holds for the layers ``recomputed`` (None: all), counted through encoder and decoder.
    ``one_stage``: first and last piece are on one rank, which holds a tied weight once.
    Errors: InputError for sizes that do not divide, naming the rule and the nearest valid value.
    """
    shard = replace(shard, seq=model.sequence(shard.seq))
    check_model(model)
    first = embedding(model, shard)
    made: dict[Hashable, ModelPiece] = {}
    layers: list[ModelPiece] = []
    first = replace(first, layer_class="embedding")
    trains = _trains(first)
    for index in range(model.layers + model.decoder_layers):
        again: Recompute = "none"
        if recomputed is None or index in recomputed:
            again = shard.recompute
        key = (_kind(model, shard, index), again, trains)
        if key not in made:
            made[key] = replace(
                _layer(model, shard, index, again, input_grad=trains), layer_class="transformer"
            )
        layers.append(made[key])
        trains = trains or _trains(made[key])
    last = shard.of_decoder() if model.decoder_layers else shard
    # Forward is a third; with frozen weights backward has the gradients of inputs alone, another third.
    share = {"all": 1.0, "none": 1 / 3}.get(shard.trainable, 2 / 3)
    full, once = (
        share * model_flops(model, shard.seq, causal_once=causal_once, decoder_seq=shard.decoder_seq)
        for causal_once in (False, True)
    )
    return ModelPieces(
        embedding=first,
        layers=tuple(layers),
        head=replace(head(model, last, one_stage=one_stage, input_grad=trains), layer_class="embedding"),
        model_flops_per_sample=once,
        model_flops_full_per_sample=full,
    )


def _trains(piece: ModelPiece) -> bool:
    return any(parameter.trainable for parameter in piece.parameters)


def _layer(model: ModelSpec, shard: Shard, index: int, again: Recompute, *, input_grad: bool) -> ModelPiece:
    shard = replace(shard, recompute=again)
    if index >= model.layers:
        return decoder_layer(model, shard, index - model.layers, recompute=again, input_grad=input_grad)
    return layer(model, shard, index, recompute=again, input_grad=input_grad)


def _kind(model: ModelSpec, shard: Shard, index: int) -> Hashable:
    """Layers of one kind have the same kernels; with a regular expression each may train differently."""
    own = -1 if shard.trainable in ("all", "none", "lora") else index
    if index >= model.layers:
        place = {model.layers: "first", model.layers + model.decoder_layers - 1: "last"}
        return "decoder", place.get(index, ""), own
    blocks = [block.name for block in blocks_of(model, index)]
    return "layer", *blocks, model.window(index), own
