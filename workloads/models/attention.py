"""Self-attention: projections, positions, the core in one kernel or several, context parallelism.

Note [Context parallelism]
    Each rank holds two slices of the sequence, one from either end, so that causal work is even.
    "ring" (arXiv 2310.01889): keys and values travel round the ring while the piece at hand is worked on; the
    first piece is causal, the others are full over half of the scores.  "all_gather" (arXiv 2407.21783):
    keys and values are gathered first.  "ulysses" (arXiv 2309.14509): all_to_all trades tokens for heads.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

from workloads.models.elementary import norm, rotary
from workloads.models.linear import Linear, column_parallel, linear, row_parallel
from workloads.models.local import Shard
from workloads.models.pieces import Kernel
from workloads.models.spec import ModelSpec
from workloads.models.tape import Launch, Tape
from workloads.models.tensors import Tensor, collective, compute

CP_STREAM = "cp"


@dataclass(frozen=True)
class _Core:
    """Attention proper on this rank: local heads, tokens, sizes of queries/keys and values."""

    batch: int
    heads: int
    kv_heads: int
    seq: int
    qk_size: int
    v_size: int
    causal: bool
    window: int
    module: str

    @property
    def size(self) -> int:
        """Head size with the same flops for both products."""
        return (self.qk_size + self.v_size) // 2


def self_attention(tape: Tape, shard: Shard, model: ModelSpec, x: Tensor, module: str) -> Tensor:
    """``x [tokens, hidden]`` to the same, bias left for the residual sum (see ``Linear.bias_apart``)."""
    if model.mla is not None:
        core = _latent_projections(tape, shard, model, x, module)
    else:
        core = _projections(tape, shard, model, x, module)
    out = _context_parallel(tape, shard, core)
    merged = x.like(shard.tokens, core.heads * core.v_size)
    # A fused kernel keeps its output, which is the projection's input too.
    keeps = shard.software.attention == "unfused"
    layer = Linear(f"{module}.linear_proj", bias=model.bias, bias_apart=False, save_input=keeps)
    assert out.numel == merged.numel
    return row_parallel(tape, shard, merged, model.hidden, layer)


def _projections(tape: Tape, shard: Shard, model: ModelSpec, x: Tensor, module: str) -> _Core:
    size, tp = model.size_per_head, shard.tp
    heads, kv_heads = model.heads // tp, max(1, model.num_kv_heads // tp)
    width = (heads + 2 * kv_heads) * size * tp
    column_parallel(tape, shard, x, width, Linear(f"{module}.linear_qkv", bias=model.bias))
    if model.positions == "rotary":
        tokens = shard.tokens
        query, key = x.like(tokens, heads, size), x.like(tokens, kv_heads, size)
        rotary(tape, shard, [query, key], module)
    return _Core(
        batch=shard.micro_batch,
        heads=heads,
        kv_heads=kv_heads,
        seq=shard.local_seq,
        qk_size=size,
        v_size=size,
        causal=model.causal,
        window=model.sliding_window,
        module=f"{module}.core_attention",
    )


def _latent_projections(tape: Tape, shard: Shard, model: ModelSpec, x: Tensor, module: str) -> _Core:
    """Compressed queries, keys and values (arXiv 2405.04434); the small projections are on every rank."""
    mla = model.mla
    assert mla is not None
    heads = model.heads // shard.tp
    qk_size = mla.qk_nope_head_size + mla.qk_rope_head_size
    query = x
    if mla.q_lora_rank:
        query = linear(tape, shard, x, mla.q_lora_rank, Linear(f"{module}.linear_q_down_proj"))
        query = norm(tape, shard, model, query, f"{module}.q_layernorm", residual=False)
        column_parallel(tape, shard, query, model.heads * qk_size, Linear(f"{module}.linear_q_up_proj"))
    else:
        column_parallel(tape, shard, query, model.heads * qk_size, Linear(f"{module}.linear_q_proj"))
    width = mla.kv_lora_rank + mla.qk_rope_head_size
    linear(tape, shard, x, width, Linear(f"{module}.linear_kv_down_proj", save_input=not mla.q_lora_rank))
    latent = norm(
        tape, shard, model, x.like(x.shape[0], mla.kv_lora_rank), f"{module}.kv_layernorm", residual=False
    )
    up = model.heads * (mla.qk_nope_head_size + mla.v_head_size)
    column_parallel(tape, shard, latent, up, Linear(f"{module}.linear_kv_up_proj"))
    tokens = shard.tokens
    rotary(
        tape, shard,
        [x.like(tokens, heads, mla.qk_rope_head_size), x.like(tokens, 1, mla.qk_rope_head_size)], module,
    )  # fmt: skip
    # The rotary part of the key is copied to every head beside the other.
    key = x.like(tokens, heads, qk_size)
    tape.run("aten::cat", [key], [key], module=module)
    tape.group().launches.append(Launch(compute("aten::_to_copy", [key], [key], module=module)))
    return _Core(
        batch=shard.micro_batch, heads=heads, kv_heads=heads, seq=shard.local_seq, qk_size=qk_size,
        v_size=mla.v_head_size, causal=model.causal, window=0, module=f"{module}.core_attention",
    )  # fmt: skip


def _context_parallel(tape: Tape, shard: Shard, core: _Core) -> Tensor:
    if shard.cp == 1:
        return _core(tape, shard, core, core.seq, core.seq, causal=core.causal)
    if shard.cp_style == "ulysses":
        return _ulysses(tape, shard, core)
    if shard.cp_style == "all_gather":
        return _gathered(tape, shard, core)
    return _ring(tape, shard, core)


def _ulysses(tape: Tape, shard: Shard, core: _Core) -> Tensor:
    """All tokens of a part of the heads: exchange before and after."""
    tokens, cp = core.batch * core.seq, shard.cp
    before = shard.tensor(tokens, (core.heads + 2 * core.kv_heads) * core.qk_size)
    after = shard.tensor(tokens, core.heads * core.v_size)
    _exchange(tape, before, core.module)
    parted = _Core(
        core.batch, core.heads // cp, max(1, core.kv_heads // cp), core.seq * cp, core.qk_size, core.v_size,
        core.causal, core.window, core.module,
    )  # fmt: skip
    out = _core(tape, shard, parted, parted.seq, parted.seq, causal=core.causal)
    _exchange(tape, after, core.module)
    return out


def _exchange(tape: Tape, tensor: Tensor, module: str) -> None:
    kernel = collective("all_to_all", tensor, "cp", module=module)
    tape.launch(Launch(kernel))
    tape.group().launches.append(Launch(kernel))


def _gathered(tape: Tape, shard: Shard, core: _Core) -> Tensor:
    whole = shard.tensor(core.batch * core.seq * shard.cp, core.kv_heads * (core.qk_size + core.v_size))
    tape.launch(Launch(collective("all_gather", whole, "cp", module=core.module)))
    tape.group().launches.append(Launch(collective("reduce_scatter", whole, "cp", module=core.module)))
    keys = core.seq * shard.cp
    if core.causal:
        keys = keys // 2 + core.seq // 2  # on average; slices from both ends make it even
    return _core(tape, shard, core, core.seq, keys, causal=False)


def _ring(tape: Tape, shard: Shard, core: _Core) -> Tensor:
    """One causal piece, then ``cp - 1`` full ones over half of the scores while the next keys travel."""
    keys = shard.tensor(core.batch * core.seq, core.kv_heads * (core.qk_size + core.v_size))
    pieces = [(core.seq, core.seq, core.causal)]
    pieces += [(core.seq, core.seq // 2 if core.causal else core.seq, False)] * (shard.cp - 1)
    out = shard.tensor(core.batch * core.seq, core.heads * core.v_size)
    back = tape.group()
    # Backward sends the gradients of keys and values on with them.
    both = keys.like(2, *keys.shape)
    travelling: Hashable = None
    for number, (queries, length, causal) in enumerate(pieces):
        arriving, travelling = travelling, None
        if number + 1 < len(pieces):
            travelling = tape.new_label()
            before = tape.last_label()
            waits = tuple(label for label in (before, arriving) if label is not None)
            step = collective("send_recv", keys, "cp", stream=CP_STREAM, module=core.module, peer_delta=1)
            tape.launch(Launch(step, travelling, waits))
        if arriving is not None:
            tape.next_waits_for(arriving)
        forward, backward = _fused(shard, core, queries, length, causal)
        tape.run(
            forward.name, _tensors(forward, "in"), _tensors(forward, "out"), op_class=forward.op_class,
            flops=forward.flops, module=core.module,
            saved=_saved_bytes(shard, core) if number == 0 else 0,
        )  # fmt: skip
        label = tape.new_label() if number + 1 < len(pieces) else None
        if number:
            tape.run("softmax_lse_correction", [out, out], [out], op_class="elementwise", module=core.module)
        back.launches.append(Launch(backward))
        if label is not None:
            kernel = collective("send_recv", both, "cp", stream=CP_STREAM, module=core.module, peer_delta=1)
            back.launches.append(Launch(kernel, label))
            if number + 2 == len(pieces):
                back.after.append(label)
    return out


def _core(tape: Tape, shard: Shard, core: _Core, queries: int, keys: int, *, causal: bool) -> Tensor:
    if shard.software.attention == "unfused":
        return _unfused(tape, shard, core, queries, keys)
    if core.window and keys > core.window:
        keys, causal = core.window, False
    forward, backward = _fused(shard, core, queries, keys, causal)
    tape.run(
        forward.name, _tensors(forward, "in"), _tensors(forward, "out"), op_class=forward.op_class,
        flops=forward.flops, module=core.module, saved=_saved_bytes(shard, core),
    )  # fmt: skip
    group = tape.group()
    if shard.recompute == "selective":
        group.recompute.append(Launch(_again(forward)))
    group.launches.append(Launch(backward))
    return shard.tensor(core.batch * queries, core.heads * core.v_size)


def _fused(shard: Shard, core: _Core, queries: int, keys: int, causal: bool) -> tuple[Kernel, Kernel]:
    """Forward and backward; the name says the kernel's class, and "full" where nothing is masked."""
    rows = core.batch * core.heads
    query = shard.tensor(rows, queries, core.size)
    key = shard.tensor(core.batch * core.kv_heads, keys, core.size)
    lse = shard.tensor(rows, queries, dtype="float32")
    flops = 4 * rows * queries * keys * core.size
    kind = "" if causal else "_full"
    name = f"{shard.software.attention}_attention"
    forward = compute(
        f"{name}{kind}_fwd", [query, key, key], [query, lse], op_class="attention_fwd", flops=flops,
        module=core.module,
    )  # fmt: skip
    backward = compute(
        f"{name}{kind}_bwd", [query, query, key, key, query, lse], [query, key, key],
        op_class="attention_bwd", flops=flops * 5 // 2, module=core.module,
    )  # fmt: skip
    return forward, backward


def _saved_bytes(shard: Shard, core: _Core) -> int:
    """Queries, keys, values, output and row statistics; selective recompute keeps the inputs."""
    tokens = core.batch * core.seq
    inputs = shard.tensor(tokens, core.heads * core.qk_size + core.kv_heads * (core.qk_size + core.v_size))
    output = shard.tensor(tokens, core.heads * core.v_size)
    rows = shard.tensor(tokens, core.heads, dtype="float32")
    return inputs.num_bytes + output.num_bytes + rows.num_bytes


def _unfused(tape: Tape, shard: Shard, core: _Core, queries: int, keys: int) -> Tensor:
    """Scores, scale-mask-softmax, dropout, context: each writes its matrix."""
    rows, module = core.batch * core.heads, core.module
    query, key = shard.tensor(rows, queries, core.qk_size), shard.tensor(rows, keys, core.qk_size)
    value, out = shard.tensor(rows, keys, core.v_size), shard.tensor(rows, queries, core.v_size)
    scores = shard.tensor(rows, queries, keys)
    score_flops, value_flops = 2 * scores.numel * core.qk_size, 2 * scores.numel * core.v_size
    start = len(tape.forward)
    saved = shard.recompute != "selective"
    inputs = query.num_bytes + key.num_bytes + value.num_bytes
    group = tape.group()
    tape.run("aten::baddbmm", [query, key], [scores], op_class="bgemm", flops=score_flops, module=module,
             saved=inputs)  # fmt: skip
    softmax = _softmax(shard, scores)
    for name, outs in softmax:
        tape.run(name, [scores], outs, module=module, saved=scores.num_bytes if saved else 0)
    tape.run("aten::bmm", [scores, value], [out], op_class="bgemm", flops=value_flops, module=module)
    tape.run("aten::clone", [out], [out], module=module)
    if shard.recompute == "selective":
        group.recompute.extend(Launch(_again(launch.kernel)) for launch in tape.forward[start:])
    back = [
        compute("aten::bmm", [scores, out], [value], op_class="bgemm", flops=value_flops, module=module),
        compute("aten::bmm", [out, value], [scores], op_class="bgemm", flops=value_flops, module=module),
        *(
            compute(_backward_name(name), [scores, *outs], [scores], module=module)
            for name, outs in reversed(softmax)
        ),
        compute("aten::bmm", [scores, key], [query], op_class="bgemm", flops=score_flops, module=module),
        compute("aten::bmm", [query, scores], [key], op_class="bgemm", flops=score_flops, module=module),
    ]  # fmt: skip
    group.launches.extend(Launch(kernel) for kernel in back)
    joined = shard.tensor(core.batch * core.seq, (core.heads + 2 * core.kv_heads) * core.qk_size)
    group.launches.append(Launch(compute("aten::cat", [joined], [joined], module=module)))
    return out


def _softmax(shard: Shard, scores: Tensor) -> list[tuple[str, list[Tensor]]]:
    mask = scores.like(*scores.shape, dtype="bool")
    dropout = [("aten::native_dropout", [scores, mask])]
    if shard.software.softmax_fusion:
        return [("scaled_masked_softmax_fwd", [scores]), *dropout]
    return [
        ("aten::mul.Tensor", [scores]),
        ("aten::masked_fill", [scores]),
        ("aten::_softmax", [scores]),
        *dropout,
    ]


def _backward_name(name: str) -> str:
    return {
        "scaled_masked_softmax_fwd": "scaled_masked_softmax_bwd",
        "aten::_softmax": "aten::_softmax_backward_data",
        "aten::native_dropout": "aten::native_dropout_backward",
    }.get(name, name)


def _again(kernel: Kernel) -> Kernel:
    return replace(kernel, recomputed=True, saved_bytes=0)


def _tensors(kernel: Kernel, side: str) -> list[Tensor]:
    """The kernel's tensors; row statistics are fp32."""
    shapes = kernel.in_shapes if side == "in" else kernel.out_shapes
    return [Tensor(shape, "float32" if len(shape) == 2 else kernel.dtype) for shape in shapes]
