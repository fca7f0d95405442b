"""A whole model as pieces."""

from __future__ import annotations

from workloads.models.ends import embedding, head
from workloads.models.flops import model_flops
from workloads.models.layers import has_experts, layer
from workloads.models.local import Shard
from workloads.models.pieces import ModelPieces, Piece
from workloads.models.spec import ModelSpec


def model_pieces(model: ModelSpec, shard: Shard) -> ModelPieces:
    """All pieces of ``model`` as one rank runs them; equal layers are one object.

    ``shard.recompute`` "full" recomputes every layer, "selective" the attention core.
    """
    recompute = shard.recompute == "full"
    made: dict[bool, Piece] = {}
    layers = []
    for index in range(model.layers):
        kind = has_experts(model, index)
        if kind not in made:
            made[kind] = layer(model, shard, index, recompute=recompute)
        layers.append(made[kind])
    return ModelPieces(
        embedding=embedding(model, shard),
        layers=tuple(layers),
        head=head(model, shard),
        model_flops_per_sample=model_flops(model, shard.seq, causal_once=True),
        model_flops_full_per_sample=model_flops(model, shard.seq, causal_once=False),
    )
