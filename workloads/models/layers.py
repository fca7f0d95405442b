"""Transformer layers, each as one piece."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from workloads.models.block import LayerBlock, blocks_of
from workloads.models.blocks.attention import cross_attention
from workloads.models.elementary import norm, residual_sum
from workloads.models.local import Shard
from workloads.models.op_tape import OpTape, Recompute
from workloads.models.pieces import ModelPiece, Parameter
from workloads.models.recompute import held_outputs, mark_recomputed
from workloads.models.spec import ModelSpec
from workloads.models.tensors import Tensor

#: Writes a block's ops, of what a norm made.
Write = Callable[[Tensor], object]


def layer(
    model: ModelSpec, shard: Shard, index: int, *, recompute: bool | Recompute, input_grad: bool = True
) -> ModelPiece:
    """Layer ``index``: attention and feed-forward block, each behind a norm, each added to the residual.

    ``recompute``: how, or whether in full.  ``input_grad``: something before the layer trains.
    """
    policy = _policy(shard, recompute)
    tape = shard.tape()
    x = shard.tensor(shard.residual_tokens, model.hidden, dtype=shard.wide_dtype)
    write_layer(tape, shard, model, x, f"{stack_name(model)}.layers.{index}", index)
    mark_recomputed(
        tape, shard.recompute_modules, sparse=model.has_experts(index),
        frees=shard.software.recompute_frees_outputs,
    )  # fmt: skip
    made = tape.piece("layer", x, input_bytes=x.num_bytes, recompute=policy, input_grad=input_grad,
                      held=held_outputs(tape.forward, policy, shard.recompute_keeps, shard.tp),
                      holds_unread=policy == "ops" and not shard.software.compiled,
                      early_stop=shard.software.recompute_early_stop)  # fmt: skip
    return replace(made, parameters=_as_declared(made.parameters))


def _as_declared(parameters: tuple[Parameter, ...]) -> tuple[Parameter, ...]:
    """Megatron-Core's order of declaration, which buckets follow: attention begins with its output."""
    projections = [parameter for parameter in parameters if ".linear_proj." in parameter.name]
    out: list[Parameter] = []
    seen: set[str] = set()
    for parameter in parameters:
        block, within, _ = parameter.name.partition("_attention.")
        if within and block not in seen:
            seen.add(block)
            out += [p for p in projections if p.name.startswith(f"{block}{within}")]
        if ".linear_proj." not in parameter.name:
            out.append(parameter)
    return tuple(out)


def stack_name(model: ModelSpec) -> str:
    """What modules call the (first) stack of layers."""
    return "decoder" if model.causal else "encoder"


def _policy(shard: Shard, recompute: bool | Recompute) -> Recompute:
    if isinstance(recompute, bool):
        return "full" if recompute else ("selective" if shard.recompute == "selective" else "none")
    return recompute


def write_layer(
    tape: OpTape, shard: Shard, model: ModelSpec, x: Tensor, name: str, index: int, *,
    causal: bool | None = None, memory: Tensor | None = None, letters: str | None = None,
) -> None:  # fmt: skip
    """A layer's ops; with ``memory`` it attends to an encoder's output, too; ``letters``: its blocks, where
    they are not the model's own.
    """
    causal = model.causal if causal is None else causal

    def own(block: LayerBlock) -> tuple[str, Write, bool]:
        norm_name, module = block.names

        def write(normed: Tensor) -> object:
            return block.write(tape, shard, model, normed, f"{name}.{module}", index=index, causal=causal)

        return norm_name, write, model.bias and block.adds_bias

    blocks = [own(block) for block in blocks_of(model, index, letters)]
    if memory is not None:

        def crossed(normed: Tensor) -> object:
            return cross_attention(tape, shard, model, normed, memory, f"{name}.cross_attention")

        blocks.insert(1, ("pre_cross_attn_layernorm", crossed, model.bias))
    if model.parallel_block:
        _in_parallel(tape, shard, model, x, name, blocks)
        return
    for norm_name, block, bias in blocks:
        block(norm(tape, shard, model, x, f"{name}.{norm_name}"))
        if model.post_norms:
            norm(tape, shard, model, x, f"{name}.post_{norm_name}", residual=False)
        residual_sum(tape, shard, model, x, name, bias=bias)


def _in_parallel(
    tape: OpTape, shard: Shard, model: ModelSpec, x: Tensor, name: str,
    blocks: list[tuple[str, Write, bool]],
) -> None:  # fmt: skip
    """All blocks read the layer's input; their outputs and the residual are added up."""
    normed = x
    for number, (norm_name, block, _) in enumerate(blocks):
        if number == 0 or not model.shared_norm:
            normed = norm(tape, shard, model, x, f"{name}.{norm_name}")
        block(normed)
    for _, _, bias in blocks:
        residual_sum(tape, shard, model, x, name, bias=bias)
