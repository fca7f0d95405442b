"""Attention proper: scores, softmax and their product with the values, in one kernel or in several."""

from __future__ import annotations

from dataclasses import replace

from simcore.records import dataclass
from workloads.models.fp8 import operand
from workloads.models.local import NARROW, Shard
from workloads.models.op_tape import Op, OpTape, TapedLaunch
from workloads.models.pieces import KernelLaunch
from workloads.models.tensors import Tensor, compute


@dataclass(frozen=True)
class Core:
    """Attention on this rank: local heads, tokens, sizes of queries/keys and values.

    ``keys``: tokens that are attended to (0: as many as ``seq``, self-attention).  ``window``: how many of
    them a token sees (0: all).
    """

    batch: int
    heads: int
    kv_heads: int
    seq: int
    qk_size: int
    v_size: int
    causal: bool
    module: str
    window: int = 0
    keys: int = 0
    dropout: bool = False
    alibi: bool = False

    @property
    def size(self) -> int:
        """Head size with the same flops for both products."""
        return (self.qk_size + self.v_size) // 2

    @property
    def num_keys(self) -> int:
        """Tokens that are attended to."""
        return self.keys or self.seq


def attend(tape: OpTape, shard: Shard, core: Core, queries: int, keys: int, *, causal: bool) -> Tensor:
    """``queries`` x ``keys`` tokens; the result is ``[tokens, heads * v_size]``."""
    if shard.software.attention == "unfused":
        return _unfused(tape, shard, core, queries, keys)
    if shard.software.attention == "eager":
        return eager_attention(tape, shard, core, queries, keys)
    windowed = bool(core.window) and keys > core.window
    if windowed:
        # A causal window of w tokens: the first w rows see fewer, w - w^2 / 2s on average.
        keys, causal = core.window - core.window**2 // (2 * keys), False
    forward, backward = fused(shard, core, queries, keys, causal=causal, windowed=windowed)
    op = tape.op(again=True)
    if shard.software.fp8_attention and shard.narrow == NARROW["fp8"]:
        forward, backward = (replace(kernel, dtype=shard.narrow) for kernel in (forward, backward))
        given = core.heads * core.qk_size * queries + core.kv_heads * (core.qk_size + core.v_size) * keys
        flat = shard.tensor(core.batch * given)
        gradient = shard.tensor(core.batch * queries * core.heads * core.v_size)
        there, back = (
            compute("cast_fp8", [x], [operand(x, shard.narrow)], op_class="elementwise", module=core.module)
            for x in (flat, gradient)
        )
        op.launch(TapedLaunch(there))
        op.back(back)
    op.launch(kept_by_attention(shard, core, forward))
    op.back(backward)
    return shard.tensor(core.batch * queries, core.heads * core.v_size)


def kept_by_attention(shard: Shard, core: Core, forward: KernelLaunch) -> TapedLaunch:
    """The fused kernel keeps queries, keys, values, the output and a number a row."""
    keys = core.batch * core.num_keys * core.kv_heads * (core.qk_size + core.v_size)
    tokens = core.batch * core.seq
    inputs = shard.tensor(tokens * core.heads * core.qk_size + keys)
    output = shard.tensor(tokens * core.heads * core.v_size)
    rows = shard.tensor(tokens * core.heads, dtype="float32")
    return TapedLaunch(
        forward, saved_inputs=inputs.num_bytes, saved_outputs=output.num_bytes + rows.num_bytes
    )


def fused(
    shard: Shard, core: Core, queries: int, keys: int, *, causal: bool, windowed: bool = False
) -> tuple[KernelLaunch, KernelLaunch]:
    """Forward and backward; the name says the kernel's class, "full" where nothing is masked, and "window"
    where a query sees ``keys`` of those up to its own.

    Backward computes the scores again: 5 products for forward's 2 (arXiv 2205.14135).
    """
    query = shard.tensor(core.batch, core.heads, queries, core.size)
    key = shard.tensor(core.batch, core.kv_heads, keys, core.size)
    lse = shard.tensor(core.batch, core.heads, queries, dtype="float32")
    flops = 4 * core.batch * core.heads * queries * keys * core.size
    name = f"{shard.software.attention}_attention{'_window' if windowed else '' if causal else '_full'}"
    forward = compute(
        f"{name}_fwd", [query, key, key], [query, lse], op_class="attention_fwd", flops=flops,
        module=core.module,
    )  # fmt: skip
    backward = compute(
        f"{name}_bwd", [query, query, key, key, query, lse], [query, key, key], op_class="attention_bwd",
        flops=flops * 5 // 2, module=core.module,
    )  # fmt: skip
    return forward, backward


def _unfused(tape: OpTape, shard: Shard, core: Core, queries: int, keys: int) -> Tensor:
    """Scores, scale-mask-softmax, dropout, context: each writes its matrix."""
    rows, module = core.batch * core.heads, core.module
    query, key = shard.tensor(rows, queries, core.qk_size), shard.tensor(rows, keys, core.qk_size)
    value, out = shard.tensor(rows, keys, core.v_size), shard.tensor(rows, queries, core.v_size)
    if core.kv_heads < core.heads:
        repeat_keys(tape, shard, core)
    scores = shard.tensor(rows, queries, keys)
    turned = key.like(rows, core.qk_size, keys)
    score_flops, value_flops = 2 * scores.numel * core.qk_size, 2 * scores.numel * core.v_size
    inputs = query.num_bytes + key.num_bytes + value.num_bytes
    op = tape.op(again=True)
    product = compute(
        "aten::baddbmm", [query, turned], [scores], op_class="bgemm", flops=score_flops, module=module
    )
    buffered = shard.software.global_buffer and not shard.software.transformer_engine
    op.launch(TapedLaunch(replace(product, buffered=buffered), saved_inputs=inputs))
    steps = _softmax(shard, core, scores)
    for step in steps:
        op.run(step.name, step.ins, step.outs, module=module, saved_outputs=step.saved)
    op.run("aten::bmm", [scores, value], [out], op_class="bgemm", flops=value_flops, module=module)
    op.run("aten::clone", [out], [out], module=module)
    _unfused_backward(shard, op, (query, key, value, out, scores), steps, (score_flops, value_flops), module)
    return shard.tensor(core.batch * queries, core.heads * core.v_size)


def _unfused_backward(
    shard: Shard, op: Op, tensors: tuple[Tensor, ...], steps: list[_ScoreOp], flops: tuple[int, int],
    module: str,
) -> None:  # fmt: skip
    query, key, value, out, scores = tensors
    turned, value_turned = (t.like(t.shape[0], t.shape[2], t.shape[1]) for t in (key, value))
    # Dropped probabilities, their mask and what the softmax made go one by one, as autograd's nodes are done.
    dropped = scores.num_bytes if steps[-1].name == "aten::native_dropout" else 0
    for ins, target, ends in (([scores, out], value, 0), ([out, value_turned], scores, dropped)):
        product = compute("aten::bmm", ins, [target], op_class="bgemm", flops=flops[1], module=module)
        op.back(replace(product, ends_bytes=ends))
    # The checkpoint of selective recomputation hands on each gradient as a tensor of its own.
    copied = shard.recomputes_attention
    if copied:
        op.back(compute("aten::clone", [value], [value], module=module))
    for step in reversed(steps):
        if step.backward:
            outs = step.backward_outs or (scores,)
            ends = step.outs[-1].num_bytes if step.saved else 0
            op.back(replace(compute(step.backward, step.backward_ins, outs, module=module), ends_bytes=ends))
    for ins, target in (([scores, key], query), ([query.like(*turned.shape), scores], turned)):
        op.back(compute("aten::bmm", ins, [target], op_class="bgemm", flops=flops[0], module=module))
        op.back(compute("aten::mul.Scalar", [target], [target], module=module))
    for target in (query, key) if copied else ():
        op.back(compute("aten::clone", [target], [target], module=module))


def eager_attention(
    tape: OpTape,
    shard: Shard,
    core: Core,
    queries: int,
    keys: int,
    *,
    additions: int = 0,
    window_mask: int = 0,
) -> Tensor:
    """``softmax(q k^T / sqrt(d)) v`` as PyTorch launches it for views of one projection: each is copied
    first.

    Under autocast the softmax writes fp32, which is cast for the product with the values.  ``additions``: how
    many biases of heads are added to the scores, ``window_mask``: of how many windows each has a mask.
    A compiler makes one kernel of all that is between the products.
    """
    rows, module = core.batch * core.heads, core.module
    query, key = shard.tensor(rows, queries, core.qk_size), shard.tensor(rows, core.qk_size, keys)
    value, out = shard.tensor(rows, keys, core.v_size), shard.tensor(rows, queries, core.v_size)
    scores = shard.tensor(rows, queries, keys)
    wide = scores.like(*scores.shape, dtype="float32")
    flops = 2 * scores.numel * core.qk_size, 2 * scores.numel * core.v_size
    op = tape.op(again=True)
    for copied in (query, key):
        op.run("aten::clone", [copied], [copied], module=module)
    op.run("aten::bmm", [query, key], [scores], op_class="bgemm", flops=flops[0], module=module,
           saved_inputs=query.num_bytes + key.num_bytes)  # fmt: skip
    fuses = shard.software.compiled and shard.trainable == "none"
    biases = [
        Tensor((masks, core.heads if masks == 1 else 1, queries, keys), "float32")
        for masks in (*[1] * additions, *([window_mask] if window_mask else []))
    ]
    scaled = query if additions else scores  # before the product where biases come behind it
    if not fuses:
        op.run("aten::mul.Tensor", [scaled], [scaled], module=module)
    current = scores
    for bias in biases if not fuses else ():
        before, current = current, wide if shard.casts else scores
        op.run("aten::add.Tensor", [before, bias], [current], module=module)
    probabilities = wide if shard.casts and not fuses else scores
    op.run("aten::_softmax", [current, *(biases if fuses else ())], [probabilities], module=module,
           saved_outputs=probabilities.num_bytes)  # fmt: skip
    if shard.casts and not fuses:
        op.run("aten::_to_copy", [wide], [scores], module=module)
    op.run("aten::clone", [value], [value], module=module, saved_inputs=value.num_bytes)
    op.run("aten::bmm", [scores, value], [out], op_class="bgemm", flops=flops[1], module=module,
           saved_inputs=scores.num_bytes)  # fmt: skip
    op.run("aten::clone", [out], [out], module=module)
    op.back(compute("aten::clone", [out], [out], module=module))
    op.back(compute("aten::bmm", [scores, out], [value], op_class="bgemm", flops=flops[1], module=module))
    op.back(compute("aten::bmm", [out, value], [scores], op_class="bgemm", flops=flops[1], module=module))
    if shard.casts:
        op.back(compute("aten::_to_copy", [scores], [wide], module=module))
    op.back(compute("aten::_softmax_backward_data", [probabilities] * 2, [current], module=module))
    if current != scores:
        op.back(compute("aten::_to_copy", [current], [scores], module=module))
    for _ in range(additions):
        op.back(compute("aten::sum.dim_IntList", [current], [Tensor((core.heads, queries, keys), "float32")],
                        module=module), "weight")  # fmt: skip
    if not additions:
        op.back(compute("aten::mul.Tensor", [scores], [scores], module=module))
    op.back(compute("aten::bmm", [query, scores], [key], op_class="bgemm", flops=flops[0], module=module))
    op.back(compute("aten::bmm", [scores, key], [query], op_class="bgemm", flops=flops[0], module=module))
    if additions:
        op.back(compute("aten::mul.Tensor", [query], [query], module=module))
    return shard.tensor(core.batch * queries, core.heads * core.v_size)


@dataclass(frozen=True)
class _ScoreOp:
    """One kernel on the scores, and its backward (none where the name is empty)."""

    name: str
    ins: list[Tensor]
    outs: list[Tensor]
    backward: str
    backward_ins: list[Tensor]
    saved: int = 0
    backward_outs: tuple[Tensor, ...] = ()  # empty: the scores


def _softmax(shard: Shard, core: Core, scores: Tensor) -> list[_ScoreOp]:
    mask = scores.like(*scores.shape, dtype="bool")
    hidden = scores.like(1, 1, *scores.shape[1:], dtype="bool")
    steps = []
    if core.alibi:
        slope = scores.like(core.heads, 1, scores.shape[-1])
        steps.append(_ScoreOp("aten::add.Tensor", [scores, slope], [scores], "aten::clone", [scores]))
    if shard.software.softmax_fusion == "reductions":
        steps += _softmax_by_reductions(scores)
    elif shard.software.softmax_fusion:
        steps.append(
            _ScoreOp("scaled_masked_softmax_fwd", [scores, hidden], [scores], "scaled_masked_softmax_bwd",
                  [scores, scores, hidden], scores.num_bytes)
        )  # fmt: skip
    else:
        wide = replace(scores, dtype="float32") if shard.software.softmax_fp32 else scores
        if wide != scores:
            steps.append(_ScoreOp("aten::_to_copy", [scores], [wide], "aten::_to_copy", [wide], 0, (scores,)))
        steps += [
            _ScoreOp("aten::mul.Tensor", [wide], [wide], "aten::mul.Tensor", [wide], 0, (wide,)),
            _ScoreOp("aten::masked_fill", [wide, hidden], [wide], "aten::masked_fill", [wide, hidden], 0,
                  (wide,)),
            _ScoreOp("aten::_softmax", [wide], [wide], "aten::_softmax_backward_data", [wide, wide],
                  wide.num_bytes, (wide,)),
        ]  # fmt: skip
        if wide != scores:
            steps.append(_ScoreOp("aten::_to_copy", [wide], [scores], "aten::_to_copy", [scores], 0, (wide,)))
    if core.dropout:
        saved = scores.num_bytes + mask.num_bytes
        steps.append(
            _ScoreOp("aten::native_dropout", [scores], [scores, mask], "aten::native_dropout_backward",
                  [scores, mask], saved)
        )  # fmt: skip
    return steps


def _softmax_by_reductions(scores: Tensor) -> list[_ScoreOp]:
    """As XLA fuses it: rows' maxima, rows' sums, then the probabilities; each pass reads the scores.

    Backward: rows' sums of gradient times probability, then the gradient of the scores; both compute
    probabilities again.  Recorded in JAX-Toolbox's test data (pax_fsdp4, GPT 126M on four A100): a layer has
    two reductions that read one tensor of the scores' size, one that reads two, and elementwise kernels that
    move two and three.
    """
    rows = scores.like(*scores.shape[:-1], dtype="float32")
    return [
        _ScoreOp("softmax_row_max", [scores], [rows], "softmax_scores_backward", [scores, scores, rows, rows],
              scores.num_bytes),
        _ScoreOp("softmax_row_sum", [scores, rows], [rows], "softmax_row_sum_backward", [scores, scores],
              2 * rows.num_bytes, (rows,)),
        _ScoreOp("softmax_probabilities", [scores, rows, rows], [scores], "", []),
    ]  # fmt: skip


def repeat_keys(tape: OpTape, shard: Shard, core: Core) -> Core:
    """Keys and values of a group of heads are copied to each of them."""
    op, factor = tape.op(), core.heads // core.kv_heads
    for size in (core.qk_size, core.v_size):
        few = shard.tensor(core.batch * core.kv_heads, core.num_keys, size)
        whole = few.like(few.shape[0] * factor, *few.shape[1:])
        op.run("aten::repeat_interleave", [few], [whole], op_class="copy", module=core.module)
        op.back(compute("aten::sum.dim_IntList", [whole], [few], module=core.module))
    return replace(core, kv_heads=core.heads)
