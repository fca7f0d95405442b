"""Cross-entropy over logits whose columns may lie on several tensor-parallel ranks."""

from __future__ import annotations

from dataclasses import replace

from workloads.models.local import Shard
from workloads.models.op_tape import Op, OpTape, TapedLaunch
from workloads.models.tensors import Tensor, collective, compute

MODULE = "loss"


def cross_entropy(tape: OpTape, shard: Shard, logits: Tensor) -> None:
    """``logits [tokens, vocab / tp]``; as ``SoftwareSpec.cross_entropy`` says.

    Ranks agree on each token's maximum, its target's logit and its sum (Megatron-Core's
    ``vocab_parallel_cross_entropy``).
    """
    op, software = tape.op(), shard.software
    per_token = Tensor((logits.shape[0],), "float32")
    exchange: list[TapedLaunch] = []
    if shard.tp > 1:
        exchange = [
            TapedLaunch(collective("all_reduce", per_token, "tp", module=MODULE, reduce_op=what))
            for what in ("max", "sum", "sum")
        ]
    wide = replace(logits, dtype="float32") if software.logits_fp32 else logits
    if software.cross_entropy == "fused":
        op.run("cross_entropy_loss", [logits], [per_token], module=MODULE, saved_inputs=logits.num_bytes)
        for launch in exchange:
            op.launch(launch)
        op.back(compute("cross_entropy_bwd", [logits], [logits], module=MODULE))
    elif software.cross_entropy == "jit":
        _jit(op, logits, wide, per_token, exchange)
    elif software.cross_entropy == "in_place":
        _in_place(op, logits, wide, per_token, exchange)
    elif software.cross_entropy == "loss_parallel" and shard.tp > 1:
        _loss_parallel(op, logits, wide, per_token, exchange)
    else:
        _unfused(op, logits, wide, per_token, exchange)


def _jit(op: Op, logits: Tensor, wide: Tensor, per_token: Tensor, exchange: list[TapedLaunch]) -> None:
    """Three fused steps around the exchanges; the first also casts."""
    target = per_token.like(*per_token.shape, dtype="int64")
    if wide == logits:
        op.run("aten::max.dim", [logits], [per_token, target], module=MODULE)
    else:
        op.run("cross_entropy_logits_max", [logits], [wide, per_token], module=MODULE)
    for launch in exchange[:1]:
        op.launch(launch)
    op.run("cross_entropy_predicted_logits", [wide, per_token, target], [wide, per_token, per_token],
           module=MODULE)  # fmt: skip
    for launch in exchange[1:]:
        op.launch(launch)
    op.run("cross_entropy_loss", [wide, per_token, per_token], [wide, per_token], module=MODULE,
           saved_outputs=wide.num_bytes)  # fmt: skip
    op.back(compute("cross_entropy_bwd", [wide, per_token], [logits], module=MODULE))


def _in_place(op: Op, logits: Tensor, wide: Tensor, per_token: Tensor, exchange: list[TapedLaunch]) -> None:
    """Megatron-Core's steps without fusion: one fp32 copy of the logits becomes the softmax and its gradient.

    Source: megatron/core/tensor_parallel/cross_entropy.py (VocabParallelCrossEntropy).
    """
    target = per_token.like(*per_token.shape, dtype="int64")
    if wide != logits:
        op.run("aten::_to_copy", [logits], [wide], module=MODULE)
    op.run("aten::max.dim", [wide], [per_token, target], module=MODULE)
    for launch in exchange[:1]:
        op.launch(launch)
    op.run("aten::sub_.Tensor", [wide, per_token], [wide], module=MODULE)
    op.run("aten::exp_", [wide], [wide], module=MODULE)
    op.run("aten::sum.dim_IntList", [wide], [per_token], module=MODULE)
    for launch in exchange[1:]:
        op.launch(launch)
    op.run("aten::div_.Tensor", [wide, per_token], [wide], module=MODULE, saved_inputs=wide.num_bytes)
    op.back(compute("aten::mul_.Tensor", [wide, per_token], [wide], module=MODULE))
    if wide != logits:
        op.back(compute("aten::_to_copy", [wide], [logits], module=MODULE))


def _loss_parallel(
    op: Op, logits: Tensor, wide: Tensor, per_token: Tensor, exchange: list[TapedLaunch]
) -> None:
    """PyTorch's steps over each rank's columns, none of them in place.

    Source: torch/distributed/tensor/parallel/loss.py.
    """
    target, mean = per_token.like(*per_token.shape, dtype="int64"), per_token.like(1)
    if wide != logits:
        op.run("aten::_to_copy", [logits], [wide], module=MODULE)
    op.run("aten::amax", [wide], [per_token], module=MODULE)
    for launch in exchange[:1]:
        op.launch(launch)
    op.run("aten::sub.Tensor", [wide, per_token], [wide], module=MODULE)
    op.run("aten::exp", [wide], [wide], module=MODULE)
    op.run("aten::sum.dim_IntList", [wide], [per_token], module=MODULE)
    for launch in exchange[1:2]:
        op.launch(launch)
    op.run("aten::sub.Tensor", [wide, per_token], [wide], module=MODULE, saved_outputs=wide.num_bytes)
    op.run("aten::gather", [per_token, target], [per_token], module=MODULE)
    for launch in exchange[2:]:
        op.launch(launch)
    op.run("aten::sum", [per_token], [mean], module=MODULE)
    op.back(compute("aten::exp", [wide], [wide], module=MODULE))  # torch makes zeros first
    op.back(compute("aten::zeros_like", [], [wide], module=MODULE))
    op.back(compute("aten::add.Tensor", [wide, wide], [wide], module=MODULE))
    op.back(compute("aten::mul.Tensor", [wide, per_token], [wide], module=MODULE))
    if wide != logits:
        op.back(compute("aten::_to_copy", [wide], [logits], module=MODULE))


def _unfused(op: Op, logits: Tensor, wide: Tensor, per_token: Tensor, exchange: list[TapedLaunch]) -> None:
    """PyTorch's ``cross_entropy`` over logits cast to fp32."""
    if wide != logits:
        op.run("aten::_to_copy", [logits], [wide], module=MODULE)
    op.run("aten::_log_softmax", [wide], [wide], module=MODULE, saved_outputs=wide.num_bytes)
    for launch in exchange:
        op.launch(launch)
    target, mean = per_token.like(*per_token.shape, dtype="int64"), per_token.like(1)
    op.run("aten::nll_loss_forward", [per_token, target], [mean], module=MODULE)
    op.back(compute("aten::nll_loss_backward", [target, mean], [wide], module=MODULE))
    op.back(compute("aten::_log_softmax_backward_data", [wide, wide], [wide], module=MODULE))
    if wide != logits:
        op.back(compute("aten::_to_copy", [wide], [logits], module=MODULE))


def metric_losses(tape: OpTape, shard: Shard, logits: Tensor) -> None:
    """Losses that metrics compute of the logits when the backward is done: first on the tape, so last to run.

    PyTorch's, without gradients, on a copy in fp32, which autocast makes.
    """
    if not shard.software.metric_losses:
        return
    op, wide = tape.op(), replace(logits, dtype="float32")
    op.trains_tied = True
    rows = Tensor((logits.shape[0],), "float32")
    for _ in range(shard.software.metric_losses):
        for name, ins, out in (
            ("aten::_to_copy", logits, wide), ("aten::_log_softmax", wide, wide),
            ("aten::nll_loss_forward", rows, rows.like(1)),
        ):  # fmt: skip
            op.back(compute(name, [ins], [out], module="metrics"), "weight")


def small_loss(tape: OpTape, scores: Tensor) -> None:
    """Cross-entropy over a few classes that every rank has."""
    op, each = tape.op(), Tensor((scores.shape[0],), "float32")
    op.run("aten::_log_softmax", [scores], [scores], module="loss", saved_outputs=scores.num_bytes)
    op.run("aten::nll_loss_forward", [scores], [each], module="loss")
    op.back(compute("aten::nll_loss_backward", [each], [scores], module="loss"))
    op.back(compute("aten::_log_softmax_backward_data", [scores, scores], [scores], module="loss"))
