"""Dense features come in, layers of neurons pass them on, a click or none goes out."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from workloads.models.autocast import narrowed
from workloads.models.frozen import Width, WidthOrNone
from workloads.models.kinds.tables import looked_up
from workloads.models.linear import Linear, add_bias, linear
from workloads.models.listed import BlockKind, BlockSpec, Passage, register
from workloads.models.op_tape import TapedLaunch
from workloads.models.tensors import Tensor, collective, compute

Neuron = Literal["relu", "sigmoid", "gelu", ""]


class FeaturesSpec(BlockSpec):
    """Numbers that a sample brings along, ``width`` of them (0: none, tables alone)."""

    width: WidthOrNone = 13


def _features(at: Passage, spec: FeaturesSpec) -> None:
    at.x = Tensor((at.batch, spec.width), at.shard.wide_dtype)


class MlpSpec(BlockSpec):
    """Layers of ``widths`` neurons, each with an activation, the last with ``last``.

    ``pad``: the width that comes in is rounded up to a multiple of it.
    """

    widths: tuple[Width, ...]
    act: Neuron = "relu"
    last: Neuron = "relu"
    pad: Width = 1


def _mlp(at: Passage, spec: MlpSpec) -> None:
    x = at.x.like(at.x.shape[0], at.x.numel // at.x.shape[0])
    for number, width in enumerate(spec.widths):
        if x.shape[1] % spec.pad:
            x = x.like(x.shape[0], -(-x.shape[1] // spec.pad) * spec.pad)
        act = spec.last if number == len(spec.widths) - 1 else spec.act
        x = dense_layer(at, x, width, act, f"{at.module}.{number}", number)
    at.x = whole_batch(at, x)


def dense_layer(at: Passage, x: Tensor, width: int, act: Neuron, module: str, number: int = 0) -> Tensor:
    """A linear layer with bias and activation: one kernel behind the product, or none where builds fuse it.

    Over tensor-parallel ranks layers take turns: columns of the first, then rows of the second; neurons are
    padded to a multiple of the ranks.
    """
    shard, tape = at.shard, at.tape
    if shard.tp == 1:
        y = linear(tape, shard, x, width, Linear(module, bias=True, fp8=False))
        return neuron(at, y, act, module)
    each = -(-width // shard.tp)
    if number % 2 == 0:
        y = linear(tape, shard, gathered(at, x, module), each, Linear(module, bias=True, fp8=False))
        return neuron(at, y, act, module)
    y = linear(tape, shard, x, width, Linear(module, bias=False, fp8=False))
    return neuron(at, summed(at, y, module), act, module)


def gathered(at: Passage, x: Tensor, module: str) -> Tensor:
    """A rank's own samples become those of all ranks; backward their gradients are summed."""
    whole = x.like(x.shape[0] * at.shard.tp, x.shape[1])
    op = at.tape.op()
    op.launch(TapedLaunch(collective("all_gather", whole, "tp", module=module)))
    op.back(collective("reduce_scatter", whole, "tp", module=module), "input")
    return whole


def summed(at: Passage, y: Tensor, module: str) -> Tensor:
    """Parts of products of all samples become sums of a rank's own, to which all ranks' bias is added."""
    op = at.tape.op()
    op.launch(TapedLaunch(collective("reduce_scatter", y, "tp", module=module)))
    op.back(collective("all_gather", y, "tp", module=module))
    own = y.like(y.shape[0] // at.shard.tp, y.shape[1])
    add_bias(at.tape, at.shard, own, Linear(module, bias=True, fp8=False), duplicated=True)
    return own


def whole_batch(at: Passage, x: Tensor) -> Tensor:
    """Behind an odd number of split layers: columns of all samples become all columns of a rank's own."""
    if at.shard.tp == 1 or x.shape[0] == at.batch:
        return x
    op = at.tape.op()
    op.launch(TapedLaunch(collective("all_to_all", x, "tp", module=at.module)))
    op.back(collective("all_to_all", x, "tp", module=at.module))
    return x.like(at.batch, x.shape[1] * at.shard.tp)


def neuron(at: Passage, y: Tensor, act: Neuron, module: str) -> Tensor:
    """An activation; a build that fuses it into products has it for nothing."""
    if not act or (at.shard.software.product_activation_fusion and act == "relu"):
        return y
    op = at.tape.op()
    op.run(f"aten::{act}", [y], [y], op_class="elementwise", module=module, saved_outputs=y.num_bytes)
    back = {"relu": "aten::threshold_backward"}.get(act, f"aten::{act}_backward")
    op.back(compute(back, [y, y], [y], op_class="elementwise", module=module))
    return y


class ConcatSpec(BlockSpec):
    """Features beside what tables gave, side by side."""


def _concat(at: Passage, spec: ConcatSpec) -> None:
    del spec
    joined(at, looked_up(at))


def joined(at: Passage, rows: Tensor, *, in_place: bool = False) -> None:
    """The main stream and ``rows`` in one tensor; ``in_place``: an engine's lookups write there at once."""
    rows = rows.like(at.batch, rows.numel // at.batch)
    if not at.x.numel:
        at.x = rows
        return
    rows, x = (narrowed(at.tape, at.shard, one, at.module) for one in (rows, at.x))
    both = x.like(at.batch, x.shape[-1] + rows.shape[-1])
    op = at.tape.op()
    if not (in_place and at.shard.software.fused_interaction and at.shard.trainable == "none"):
        op.run("aten::cat", [x, rows], [both], module=at.module)
    op.back(compute("aten::split_copy", [both], [x, rows], op_class="copy", module=at.module))
    at.x = both


class ClickSpec(BlockSpec):
    """One number for each sample (``outputs`` of them), a sigmoid and the loss of a click."""

    outputs: Width = 1


def _click(at: Passage, spec: ClickSpec) -> None:
    x = at.x.like(at.batch, at.x.numel // at.batch)
    scores = linear(
        at.tape, replace(at.shard, tp=1), x, spec.outputs, Linear(f"{at.module}.out", bias=True, fp8=False)
    )
    op = at.tape.op()
    wide = scores.like(*scores.shape, dtype="float32")
    if at.shard.trainable == "none":
        op.run("aten::sigmoid", [scores], [wide], module=at.module)
        return
    one = Tensor((1,), "float32")
    op.run("aten::binary_cross_entropy_with_logits", [scores, wide], [wide], module=at.module,
           saved_inputs=scores.num_bytes)  # fmt: skip
    op.run("aten::mean", [wide], [one], op_class="reduction", module=at.module)
    op.back(compute("aten::sigmoid_backward", [wide, wide], [scores], module=at.module))


register(BlockKind("features", FeaturesSpec, _features, inputs=True, samples=4096))
register(BlockKind("mlp", MlpSpec, _mlp, splits=True))
register(BlockKind("concat", ConcatSpec, _concat))
register(BlockKind("click", ClickSpec, _click))
