"""Both ends of a language model: token embedding, and the output layer with the loss."""

from __future__ import annotations

from dataclasses import replace

from workloads.models.elementary import norm
from workloads.models.linear import Linear, accumulate, column_parallel
from workloads.models.local import Shard
from workloads.models.pieces import Piece
from workloads.models.spec import ModelSpec
from workloads.models.tape import Launch, Tape
from workloads.models.tensors import Tensor, collective, compute


def padded_vocab(model: ModelSpec, shard: Shard) -> int:
    """Rows of the embedding: the vocabulary rounded up as the framework does."""
    multiple = shard.software.vocab_multiple * (shard.tp if shard.software.vocab_multiple_times_tp else 1)
    return -(-model.vocab // multiple) * multiple


def embedding(model: ModelSpec, shard: Shard) -> Piece:
    """Token ids to activations: each tensor-parallel rank looks up its rows, then all add up."""
    tape = Tape()
    name = "embedding.word_embeddings"
    rows = padded_vocab(model, shard) // shard.tp
    tokens = shard.tokens
    ids = Tensor((tokens,), "int64")
    whole = shard.tensor(tokens, model.hidden)
    x = shard.tensor(shard.residual_tokens, model.hidden)
    weight = shard.tensor(rows, model.hidden)
    tape.parameter(f"{name}.weight", rows, model.hidden)
    group = tape.group()
    # Of the table only the rows that are looked up are read.
    tape.run("aten::embedding", [whole, ids], [whole], module=name, saved=ids.num_bytes)
    if shard.tp > 1:
        tape.run("aten::masked_fill", [whole], [whole], module=name)
        what = "reduce_scatter" if shard.sequence_parallel else "all_reduce"
        tape.launch(Launch(collective(what, whole, "tp", module=name)))
        if shard.sequence_parallel:
            group.launches.append(Launch(collective("all_gather", whole, "tp", module=name)))
        group.launches.append(Launch(compute("aten::masked_fill", [whole], [whole], module=name)))
    kernel = compute("aten::embedding_dense_backward", [whole, ids], [weight], module=name)
    group.launches.append(Launch(kernel))
    accumulate(group, shard, weight.shape, name)
    if model.positions == "learned":
        position = f"{name.rsplit('.', 1)[0]}.position_embeddings"
        count = model.max_positions or shard.seq
        tape.parameter(f"{position}.weight", count, model.hidden, tp_duplicated=shard.sequence_parallel)
        tape.run("aten::add.Tensor", [x, x.like(shard.local_seq, model.hidden)], [x], module=position)
        group = tape.group()
        table = x.like(count, model.hidden)
        group.launches.append(
            Launch(compute("aten::embedding_dense_backward", [x, ids], [table], module=position))
        )
        accumulate(group, shard, table.shape, position)
    if model.dropout:
        mask = x.like(*x.shape, dtype="bool")
        tape.run("aten::native_dropout", [x], [x, mask], module="embedding", saved=mask.num_bytes)
        tape.group().launches.append(
            Launch(compute("aten::native_dropout_backward", [x, mask], [x], module="embedding"))
        )
    return tape.piece("embedding", x, recompute_all=False, input_bytes=ids.num_bytes)


def head(model: ModelSpec, shard: Shard) -> Piece:
    """Final norm, logits (their columns over tensor-parallel ranks) and cross-entropy."""
    tape = Tape()
    x = shard.tensor(shard.residual_tokens, model.hidden)
    norm(tape, shard, model, x, "decoder.final_layernorm", residual=False)
    vocab = padded_vocab(model, shard)
    layer = Linear("output_layer", fp8=False, tied=model.tied_embeddings)
    logits = column_parallel(tape, shard, x, vocab, layer)
    if model.tied_embeddings:
        # The tied weight lives on this stage, too; its gradients are added to the embedding's.
        tape.parameter("embedding.word_embeddings.weight (tied)", vocab // shard.tp, model.hidden)
    _cross_entropy(tape, shard, logits)
    return tape.piece("head", x, recompute_all=False, input_bytes=x.num_bytes)


def _cross_entropy(tape: Tape, shard: Shard, logits: Tensor) -> None:
    module = "loss"
    wide = replace(logits, dtype="float32") if shard.software.logits_fp32 else logits
    tokens = logits.shape[0]
    per_token = Tensor((tokens,), "float32")
    group = tape.group().launches
    software = shard.software
    if wide.dtype != logits.dtype and software.cross_entropy != "fused":
        tape.run("aten::_to_copy", [logits], [wide], module=module)
    exchange = [
        Launch(collective("all_reduce", per_token, "tp", module=module))
        for _ in range(3 if shard.tp > 1 else 0)
    ]
    if software.cross_entropy == "fused":
        tape.run("cross_entropy_loss", [logits], [per_token], module=module, saved=logits.num_bytes)
        for launch in exchange:
            tape.launch(launch)
        group.append(Launch(compute("cross_entropy_bwd", [logits], [logits], module=module)))
        return
    if software.cross_entropy == "jit":
        tape.run("cross_entropy_logits_max", [wide], [per_token], op_class="reduction", module=module)
        for launch in exchange[:1]:
            tape.launch(launch)
        tape.run("cross_entropy_predicted_logits", [wide, per_token], [wide, per_token], module=module,
                 saved=wide.num_bytes)  # fmt: skip
        for launch in exchange[1:]:
            tape.launch(launch)
        tape.run("cross_entropy_loss", [per_token, per_token], [per_token], module=module)
        if shard.tp > 1:
            tape.run("aten::div_.Tensor", [wide, per_token], [wide], module=module)
        group.append(Launch(compute("cross_entropy_bwd", [wide], [wide], module=module)))
    else:
        tape.run("aten::_log_softmax", [wide], [wide], module=module, saved=wide.num_bytes)
        for launch in exchange:
            tape.launch(launch)
        tape.run("aten::nll_loss_forward", [per_token], [per_token], module=module)
        group.append(Launch(compute("aten::nll_loss_backward", [per_token], [wide], module=module)))
        group.append(Launch(compute("aten::_log_softmax_backward_data", [wide, wide], [wide], module=module)))
    if wide.dtype != logits.dtype:
        group.append(Launch(compute("aten::_to_copy", [wide], [logits], module=module)))
