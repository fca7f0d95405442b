"""Encoder-decoders (T5, arXiv 1910.10683): the decoder's layers also attend to the encoder's output.

Note [What a decoder stage hands on]
    The encoder's output passes through all decoder layers to the last one, and its gradient comes back the
    same way; so decoder pieces hand on two tensors.
"""

from __future__ import annotations

from dataclasses import replace

from workloads.models.elementary import norm
from workloads.models.embeddings import write_tokens
from workloads.models.layers import write_layer
from workloads.models.local import Shard
from workloads.models.pieces import Piece
from workloads.models.spec import ModelSpec
from workloads.models.tape import Recompute


def decoder_layer(
    model: ModelSpec, shard: Shard, index: int, *, recompute: Recompute, input_grad: bool = True
) -> Piece:
    """Decoder layer ``index``, with the decoder's embedding and the encoder's last norm in the first.

    ``shard`` is the encoder's view.
    """
    decoder = shard.of_decoder()
    tape = shard.tape()
    memory = shard.tensor(shard.residual_tokens, model.hidden)
    x = shard.tensor(decoder.residual_tokens, model.hidden)
    input_bytes = memory.num_bytes + x.num_bytes
    if index == 0:
        norm(tape, shard, model, memory, "encoder.final_layernorm", residual=False)
        input_bytes = memory.num_bytes + write_tokens(tape, decoder, model, owner=False)
    name = f"decoder.layers.{index}"
    write_layer(tape, decoder, model, x, name, index, causal=True, memory=memory)
    made = tape.piece(
        "decoder_layer", x, input_bytes=input_bytes, recompute=recompute, input_grad=input_grad,
        early_stop=shard.software.recompute_early_stop,
    )  # fmt: skip
    handed_on = memory.num_bytes if index + 1 < model.decoder_layers else 0
    return replace(made, output_bytes=made.output_bytes + handed_on)
