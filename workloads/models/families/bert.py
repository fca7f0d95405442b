"""BERT (arXiv 1810.04805): tokens attend to all others; masked ones and the next sentence are predicted."""

from __future__ import annotations

from workloads.models.elementary import activation, norm
from workloads.models.embeddings import embed_tokens
from workloads.models.family import Family, register
from workloads.models.heads import predict_tokens
from workloads.models.linear import Linear, linear
from workloads.models.local import Shard
from workloads.models.loss import small_loss
from workloads.models.op_tape import OpTape
from workloads.models.spec import ModelSpec
from workloads.models.tensors import Tensor, compute


def _end(tape: OpTape, shard: Shard, model: ModelSpec, x: Tensor) -> None:
    _transform(tape, shard, model, x)
    predict_tokens(tape, shard, model.model_copy(update={"head_bias": True}), x)
    _next_sentence(tape, shard, model, x)


def _transform(tape: OpTape, shard: Shard, model: ModelSpec, x: Tensor) -> None:
    """The masked-token head before the logits: dense, GELU, norm."""
    linear(tape, shard, x, model.hidden, Linear("lm_head.dense", bias=True, fp8=False, replicated=True))
    activation(tape, shard, model, x, "lm_head", bias=False)
    norm(tape, shard, model, x, "lm_head.layer_norm", residual=False)


def _next_sentence(tape: OpTape, shard: Shard, model: ModelSpec, x: Tensor) -> None:
    """The first token through a dense layer with tanh to two classes."""
    first = x.like(shard.micro_batch, model.hidden)
    pooled = linear(tape, shard, first, model.hidden, Linear("pooler.dense", bias=True, fp8=False))
    op = tape.op()
    op.run("aten::tanh", [pooled], [pooled], module="pooler", saved_outputs=pooled.num_bytes)
    op.back(compute("aten::tanh_backward", [pooled, pooled], [pooled], module="pooler"))
    scores = linear(tape, shard, pooled, 2, Linear("binary_head", bias=True, fp8=False))
    small_loss(tape, scores)


def _multiply_adds(model: ModelSpec, seq: int, decoder_seq: int, causal_once: bool) -> float:
    del decoder_seq, causal_once
    return seq * (model.hidden * model.vocab + model.hidden**2)


register(Family("bert", embed_tokens, _end, _multiply_adds, last_stack="encoder"))
