"""Swin's blocks (arXiv 2103.14030): attention within windows, shifted in every second layer."""

from __future__ import annotations

from dataclasses import replace

from workloads.models.attention_core import Core, eager_attention
from workloads.models.elementary import norm_of_kind
from workloads.models.frozen import Heads, Size, Width
from workloads.models.images import activate
from workloads.models.linear import Linear, linear
from workloads.models.listed import BlockKind, BlockSpec, Passage, register
from workloads.models.tensors import Tensor, compute


class WindowsSpec(BlockSpec):
    """``repeat`` layers over ``[batch, height x width, hidden]``: windows of ``window`` x ``window`` tokens.

    ``side``: tokens of a row of the image.
    """

    hidden: Width
    heads: Heads
    window: Size = 7
    side: Size


def _fuses(at: Passage) -> bool:
    """Whether a compiler joins sums, norms and orders of tokens between two products into one kernel."""
    return at.shard.casts and at.shard.software.compiled and at.shard.trainable == "none"


def _copy(at: Passage, x: Tensor, name: str) -> None:
    """Tokens into another order, and back in backward."""
    if _fuses(at):
        return
    op = at.tape.op()
    op.run(name, [x], [x], op_class="copy", module=at.module)
    op.back(compute(name, [x], [x], op_class="copy", module=at.module), "input")


def _normed(at: Passage, x: Tensor, name: str) -> Tensor:
    """A layer norm, wide under autocast whatever the sum that it reads."""
    wide = x.like(*x.shape, dtype=at.shard.wide_dtype)
    op = at.tape.op()
    op.back(compute("aten::add.Tensor", [x, x], [x], module=at.module), "input")
    if wide.dtype != x.dtype and not _fuses(at):
        op = at.tape.op()
        op.run("aten::_to_copy", [x], [wide], module=at.module)
        op.back(compute("aten::_to_copy", [wide], [x], module=at.module), "input")
    return norm_of_kind(at.tape, at.shard, wide, f"{at.module}.{name}")


def _sum(at: Passage, x: Tensor, branch: Tensor) -> None:
    if _fuses(at):  # the next norm's kernel adds
        return
    op = at.tape.op()
    op.run("aten::add.Tensor", [x, branch], [x], module=at.module)
    if branch.dtype != x.dtype:
        op.back(compute("aten::_to_copy", [x], [branch], module=at.module), "input")


def _layer(at: Passage, spec: WindowsSpec) -> None:
    tape, shard, module = at.tape, at.shard, at.module
    batch, tokens, width = at.x.shape
    stream = at.x.like(batch * tokens, width)
    window = min(spec.window, spec.side)
    shifted = at.index % 2 == 1 and window < spec.side
    x = _normed(at, stream, "norm1")
    if shifted:
        _copy(at, x, "aten::roll")
    _copy(at, x, "aten::clone")
    qkv = linear(tape, shard, x, 3 * width, Linear(f"{module}.attn.qkv", bias=True, fp8=False))
    for name in ("aten::clone", "aten::stack"):
        tape.op().back(compute(name, [qkv], [qkv], op_class="copy", module=module), "input")
    size, windows = window * window, (spec.side // window) ** 2
    view = replace(shard, micro_batch=batch * windows, seq=size)
    core = Core(
        batch=batch * windows, heads=spec.heads, kv_heads=spec.heads, seq=size, qk_size=width // spec.heads,
        v_size=width // spec.heads, causal=False, module=f"{module}.attn",
    )  # fmt: skip
    tape.op().parameter(f"{module}.attn.relative_position_bias_table", (2 * window - 1) ** 2, spec.heads)
    y = eager_attention(tape, view, core, size, size, additions=1, window_mask=windows if shifted else 0)
    y = linear(tape, shard, y, width, Linear(f"{module}.attn.proj", bias=True, fp8=False))
    _copy(at, y, "aten::clone")
    if shifted:
        _copy(at, y, "aten::roll")
    _sum(at, stream, y)
    x = _normed(at, stream, "norm2")
    hidden = linear(tape, shard, x, 4 * width, Linear(f"{module}.mlp.fc1", bias=True, fp8=False))
    hidden = activate(at, hidden, "gelu", f"{module}.mlp")
    y = linear(tape, shard, hidden, width, Linear(f"{module}.mlp.fc2", bias=True, fp8=False))
    _sum(at, stream, y)


class MergeSpec(BlockSpec):
    """Four neighbouring tokens side by side, a norm, and a product to twice the width."""


def _merge(at: Passage, spec: MergeSpec) -> None:
    del spec
    batch, tokens, width = at.x.shape
    x = at.x.like(batch * tokens // 4, 4 * width)
    _copy(at, x, "aten::cat")
    wide = x.like(*x.shape, dtype=at.shard.wide_dtype)
    if wide.dtype != x.dtype:
        op = at.tape.op()
        op.run("aten::_to_copy", [x], [wide], module=at.module)
        op.back(compute("aten::_to_copy", [wide], [x], module=at.module), "input")
    norm_of_kind(at.tape, at.shard, wide, f"{at.module}.norm")
    y = linear(at.tape, at.shard, wide, 2 * width, Linear(f"{at.module}.reduction", fp8=False))
    at.x = y.like(batch, tokens // 4, 2 * width)


register(BlockKind("windows", WindowsSpec, _layer, "transformer"))
register(BlockKind("merge", MergeSpec, _merge))
