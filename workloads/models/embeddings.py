"""Where a model begins: embeddings of tokens, positions and types."""

from __future__ import annotations

from workloads.models.elementary import dropout, norm
from workloads.models.exchange import in_order, reorders
from workloads.models.family import FAMILIES
from workloads.models.local import Shard
from workloads.models.loss import metric_losses
from workloads.models.op_tape import OpTape, TapedLaunch
from workloads.models.pieces import ModelPiece
from workloads.models.spec import ModelSpec
from workloads.models.tensors import Tensor, collective, compute

WORDS = "embedding.word_embeddings"


def padded_vocab(model: ModelSpec, shard: Shard) -> int:
    """Rows of the embedding: the vocabulary rounded up as the framework does."""
    multiple = shard.software.vocab_multiple * (shard.tp if shard.software.vocab_multiple_times_tp else 1)
    return -(-model.vocab // multiple) * multiple


def embedding(model: ModelSpec, shard: Shard) -> ModelPiece:
    """Token ids, or patches of images, to activations."""
    tape = shard.tape()
    x = shard.tensor(shard.residual_tokens, model.hidden)
    input_bytes = FAMILIES[model.family].begin(tape, shard, model, x)
    return tape.piece("embedding", x, input_bytes=input_bytes, input_grad=False)


def embed_tokens(tape: OpTape, shard: Shard, model: ModelSpec, _: Tensor) -> int:
    """The embedding of a model that begins with ids; returns their bytes."""
    metric_losses(tape, shard, shard.tensor(shard.tokens, padded_vocab(model, shard) // shard.tp))
    return write_tokens(tape, shard, model, owner=True)


def write_tokens(tape: OpTape, shard: Shard, model: ModelSpec, *, owner: bool) -> int:
    """Look up tokens, positions and types; returns bytes of the ids.

    ``owner`` False: the table is an encoder's, which a decoder uses too.
    """
    ids = Tensor((shard.tokens,), "int64")
    whole = shard.tensor(shard.tokens, model.hidden)
    learned = model.positions == "learned"
    scattered = shard.sequence_parallel and not learned and not model.token_types
    _words(tape, shard, model, ids, whole, owner=owner, scattered=scattered)
    if learned:
        _table(
            tape, shard, model, ids, whole, "embedding.position_embeddings", model.max_positions or shard.seq
        )
    if model.token_types:
        _table(tape, shard, model, ids, whole, "embedding.tokentype_embeddings", model.token_types)
    if model.relative_buckets:
        stack = "encoder" if owner else "decoder"
        rows = (model.relative_buckets, model.heads // shard.tp)
        tape.op().parameter(f"{stack}.relative_attention_bias.weight", *rows)
    x = whole
    if shard.sequence_parallel:
        x = whole.like(shard.residual_tokens, model.hidden)
        if not scattered:
            op = tape.op()
            op.run("aten::clone", [x], [x], module="embedding")
            op.back(collective("all_gather", whole, "tp", module="embedding"))
    if model.embedding_norm and owner:
        norm(tape, shard, model, x, "embedding.norm", residual=False)
    dropout(tape, model, x, "embedding.embedding_dropout")
    return ids.num_bytes


def _words(
    tape: OpTape, shard: Shard, model: ModelSpec, ids: Tensor, whole: Tensor, *, owner: bool, scattered: bool
) -> None:
    """Each tensor-parallel rank looks up its rows and clears those of others, then all add up."""
    op, rows = tape.op(), padded_vocab(model, shard) // shard.tp
    mask = ids.like(*ids.shape, dtype="bool")
    weight = shard.tensor(rows, model.hidden)
    if owner:
        op.parameter(f"{WORDS}.weight", *weight.shape)
    else:
        op.trains_tied = shard.trains(f"{WORDS}.weight")
    if shard.tp > 1:
        for name, ins, out in (
            ("aten::lt.Scalar", [ids], mask), ("aten::ge.Scalar", [ids], mask),
            ("aten::bitwise_or.Tensor", [mask, mask], mask), ("aten::clone", [ids], ids),
            ("aten::sub.Tensor", [ids], ids), ("aten::index_put_", [mask], mask),
        ):  # fmt: skip
            op.run(name, ins, [out], module=WORDS)
    # Of the table only the rows that are looked up are read.
    op.run("aten::embedding", [whole, ids], [whole], module=WORDS, saved_inputs=ids.num_bytes)
    if shard.tp > 1:
        op.run("aten::index_put_", [mask], [mask], module=WORDS)
        copied = scattered and reorders(shard)
        if copied:
            op.launch(TapedLaunch(in_order(shard, whole, WORDS)))
        op.launch(
            TapedLaunch(
                collective("reduce_scatter" if scattered else "all_reduce", whole, "tp", module=WORDS)
            )
        )
        if scattered:
            op.back(collective("all_gather", whole, "tp", module=WORDS), "weight")
        if copied:
            op.back(in_order(shard, whole, WORDS), "weight")
        op.back(compute("aten::index_put", [whole, mask], [whole], module=WORDS), "weight")
    op.back(compute("aten::embedding_dense_backward", [whole, ids], [weight], module=WORDS), "weight")
    op.accumulate(weight.shape, shard.dtype, shard.main_grad_dtype, WORDS)


def _table(
    tape: OpTape, shard: Shard, model: ModelSpec, ids: Tensor, whole: Tensor, name: str, count: int
) -> None:
    """Rows of a table that every rank holds, added to the token's; its gradient is whole on each."""
    op, table = tape.op(), shard.tensor(count, model.hidden)
    op.parameter(f"{name}.weight", *table.shape)
    op.run("aten::embedding", [whole, ids], [whole], module=name, saved_inputs=ids.num_bytes)
    op.run("aten::add.Tensor", [whole, whole], [whole], module="embedding")
    op.back(compute("aten::embedding_dense_backward", [whole, ids], [table], module=name), "weight")
    op.accumulate(table.shape, shard.dtype, shard.main_grad_dtype, name)
