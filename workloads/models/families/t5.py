"""T5 (arXiv 1910.10683): an encoder, and a decoder whose layers also attend to the encoder's output.

Note [What a decoder stage hands on]
    The encoder's output passes through all decoder layers to the last one, and its gradient comes back the
    same way; so decoder pieces hand on two tensors.
"""

from __future__ import annotations

from dataclasses import replace

from workloads.models.block import block_of
from workloads.models.elementary import norm
from workloads.models.embeddings import embed_tokens, write_tokens
from workloads.models.family import Family, register
from workloads.models.heads import predict_tokens
from workloads.models.layers import write_layer
from workloads.models.local import Shard
from workloads.models.op_tape import Recompute
from workloads.models.pieces import ModelPiece
from workloads.models.recompute import held_outputs
from workloads.models.spec import ModelSpec


def decoder_layer(
    model: ModelSpec, shard: Shard, index: int, *, recompute: Recompute, input_grad: bool = True
) -> ModelPiece:
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
        held=held_outputs(tape.forward, recompute, shard.recompute_keeps),
        early_stop=shard.software.recompute_early_stop,
    )  # fmt: skip
    handed_on = memory.num_bytes if index + 1 < model.decoder_layers else 0
    return replace(made, output_bytes=made.output_bytes + handed_on)


def _multiply_adds(model: ModelSpec, seq: int, decoder_seq: int, causal_once: bool) -> float:
    """Multiply-adds of decoder layers with cross-attention, and of the logits."""
    size, hidden = model.size_per_head, model.hidden
    scores = model.heads * decoder_seq * size * (1.0 if causal_once else 2.0)
    own = hidden * (model.heads + 2 * model.num_kv_heads) * size + model.heads * size * hidden + scores
    crossed = 2 * model.heads * size * hidden + model.heads * seq * size * 2.0
    each = decoder_seq * (
        own + crossed + block_of(model, "feed_forward", 0).multiply_adds(model, 0, seq, causal_once)
    )
    each += seq * hidden * 2 * model.num_kv_heads * size
    return model.decoder_layers * each + decoder_seq * hidden * model.vocab


register(Family("t5", embed_tokens, predict_tokens, _multiply_adds, has_decoder=True))
