"""Where a model ends: the last norm, logits or classes, the loss, and what else a family predicts."""

from __future__ import annotations

from workloads.models.elementary import norm
from workloads.models.embeddings import WORDS, padded_vocab
from workloads.models.family import FAMILIES
from workloads.models.fp8 import share_maxima
from workloads.models.layers import write_layer
from workloads.models.linear import Linear, column_parallel, linear
from workloads.models.local import Shard
from workloads.models.loss import cross_entropy
from workloads.models.op_tape import OpTape
from workloads.models.pieces import ModelPiece
from workloads.models.spec import ModelSpec
from workloads.models.tensors import Tensor, compute

#: Tensors of a layer whose maxima delayed scaling shares: input, weight and output gradient of 4 products.
_MAXIMA_PER_LAYER = 12


def head(model: ModelSpec, shard: Shard, *, one_stage: bool = False, input_grad: bool = True) -> ModelPiece:
    """From the last layer's output to the loss.

    ``one_stage``: the embedding is on this rank, too, so that a shared weight is the same tensor.
    """
    tape = shard.tape()
    x = shard.tensor(shard.residual_tokens, model.hidden)
    family = FAMILIES[model.family]
    norm(tape, shard, model, x, f"{family.last_stack}.final_layernorm", residual=model.mtp_layers > 0)
    family.end(tape, shard, model, x)
    if family.has_tokens and model.ties_ends and not one_stage:
        # The embedding's weight lives on this stage, too; its gradients are added to the first one's.
        tape.op().parameter(f"{WORDS}.weight (tied)", padded_vocab(model, shard) // shard.tp, model.hidden)
    share_maxima(tape, shard, _MAXIMA_PER_LAYER * model.layers)
    return tape.piece("head", x, input_bytes=x.num_bytes, input_grad=input_grad)


def predict_tokens(tape: OpTape, shard: Shard, model: ModelSpec, x: Tensor) -> None:
    """Logits and loss, of further tokens, too, where the model has such layers."""
    _logits(tape, shard, model, x)
    for number in range(model.mtp_layers):
        _further_token(tape, shard, model, x, number)


def _logits(tape: OpTape, shard: Shard, model: ModelSpec, x: Tensor, *, again: bool = False) -> None:
    """Logits and loss; ``again``: with the weight that an earlier call has."""
    tied = model.tied_embeddings or again
    layer = Linear(
        "output_layer", bias=model.head_bias, fp8=None if shard.software.fp8_head else False, tied=tied
    )
    cross_entropy(tape, shard, column_parallel(tape, shard, x, padded_vocab(model, shard), layer))


def _further_token(tape: OpTape, shard: Shard, model: ModelSpec, x: Tensor, number: int) -> None:
    """Multi-token prediction: a layer over this token's state and the next one's embedding, logits again.

    Source: DeepSeek-V3 (arXiv 2412.19437, section 2.2); embedding and output layer are shared.
    """
    name = f"mtp.layers.{number}"
    for part in ("enorm", "hnorm"):
        norm(tape, shard, model, x, f"{name}.{part}", residual=False)
    both, op = x.like(x.shape[0], 2 * model.hidden), tape.op()
    op.run("aten::cat", [x, x], [both], module=name)
    op.back(compute("aten::clone", [both], [both], module=name))
    # Columns and their gather are as much work as the whole product over this rank's tokens.
    linear(tape, shard, both, model.hidden, Linear(f"{name}.eh_proj", replicated=True))
    letters, first = model.mtp_pattern or None, len(tape.ops)
    write_layer(tape, shard, model, x, f"{name}.transformer_layer", model.layers - 1, letters=letters)
    if model.mtp_shared and number:
        for op in tape.ops[first:]:  # whose parameters are the first such layer's
            op.trains_tied, op.parameters = op.trains, []
    norm(tape, shard, model, x, f"{name}.final_layernorm", residual=False)
    _logits(tape, shard, model, x, again=True)
