"""Feed-forward blocks, plain and gated."""

from __future__ import annotations

from workloads.models.block import LayerBlock, register
from workloads.models.elementary import activation
from workloads.models.linear import Linear, column_parallel, columns_apart, row_parallel
from workloads.models.local import Shard
from workloads.models.op_tape import OpTape
from workloads.models.spec import ModelSpec
from workloads.models.tensors import Tensor


def feed_forward(
    tape: OpTape, shard: Shard, model: ModelSpec, x: Tensor, module: str, *, ffn: int = 0
) -> Tensor:
    """``x [tokens, hidden]`` to the same; a fused sum adds the bias.  ``ffn`` 0: the model's width."""
    width = ffn or model.ffn
    in_activation = model.bias and shard.software.bias_activation_fusion and (
        shard.software.swiglu_fusion if model.gated else model.activation == "gelu"
    )  # fmt: skip
    up = Linear(f"{module}.linear_fc1", bias=model.bias, bias_apart=not in_activation, bias_sum=in_activation)
    if model.gated and not shard.software.fused_gate_up:
        halves = [(width, Linear(f"{up.module}.{name}", bias=model.bias)) for name in ("gate", "up")]
        hidden = columns_apart(tape, shard, x, halves)[0]
        hidden, in_activation = hidden.like(hidden.shape[0], 2 * hidden.shape[1]), False
    else:
        hidden = column_parallel(tape, shard, x, 2 * width if model.gated else width, up)
    hidden = activation(tape, shard, model, hidden, module, bias=in_activation)
    return row_parallel(tape, shard, hidden, model.hidden, block_output(shard, model, f"{module}.linear_fc2"))


def block_output(shard: Shard, model: ModelSpec, module: str, *, save_input: bool = True) -> Linear:
    """The last linear layer of a block, whose bias a fused residual sum adds."""
    fused = shard.software.bias_dropout_fusion and not model.post_norms
    return Linear(
        module, bias=model.bias, bias_apart=not fused, bias_sum=model.dropout == 0, save_input=save_input
    )


def _feed_forward(
    tape: OpTape, shard: Shard, model: ModelSpec, x: Tensor, module: str, *, index: int, causal: bool
) -> Tensor:
    del index, causal  # all layers are alike, and tokens apart
    return feed_forward(tape, shard, model, x, module)


def _multiply_adds(model: ModelSpec, index: int, seq: int, causal_once: bool) -> float:
    del index, seq, causal_once
    return (3 if model.gated else 2) * model.hidden * model.ffn


register(LayerBlock("feed_forward", "feed_forward", _feed_forward, _multiply_adds, symbol="-"))
