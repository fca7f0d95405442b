"""Attention over a sequence that several ranks hold a part of.

Note [Context parallelism]
    Each rank holds two slices of the sequence, one from either end, so that causal work is even.
    "ring" (arXiv 2310.01889): keys and values travel round the ring while the piece at hand is worked on; the
    first piece is causal, the others are full over half of the scores.  "all_gather" (arXiv 2407.21783):
    keys and values are gathered first.  "ulysses" (arXiv 2309.14509): all_to_all trades tokens for heads.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from workloads.models.attention_core import Core, attend, fused, kept_by_attention
from workloads.models.local import Shard
from workloads.models.tape import Launch, Tape
from workloads.models.tensors import Tensor, collective

CP_STREAM = "cp"


def distributed_attention(tape: Tape, shard: Shard, core: Core) -> Tensor:
    """Attention of this rank's queries to all keys; ``[tokens, heads * v_size]``."""
    if shard.cp == 1:
        return attend(tape, shard, core, core.seq, core.num_keys, causal=core.causal)
    if shard.cp_style == "ulysses":
        return _ulysses(tape, shard, core)
    if shard.cp_style == "all_gather":
        return _gathered(tape, shard, core)
    return _ring(tape, shard, core)


def _ulysses(tape: Tape, shard: Shard, core: Core) -> Tensor:
    """All tokens of a part of the heads: exchange before and after."""
    tokens, cp = core.batch * core.seq, shard.cp
    before = shard.tensor(tokens, core.heads * core.qk_size + core.kv_heads * (core.qk_size + core.v_size))
    after = shard.tensor(tokens, core.heads * core.v_size)
    _exchange(tape, before, core.module)
    heads, kv_heads = core.heads // cp, max(1, core.kv_heads // cp)
    part = replace(core, heads=heads, kv_heads=kv_heads, seq=core.seq * cp)
    attend(tape, shard, part, part.seq, part.seq, causal=core.causal)
    _exchange(tape, after, core.module)
    return after


def _exchange(tape: Tape, tensor: Tensor, module: str) -> None:
    kernel, op = collective("all_to_all", tensor, "cp", module=module), tape.op()
    op.launch(Launch(kernel))
    op.back(kernel)


def _gathered(tape: Tape, shard: Shard, core: Core) -> Tensor:
    op = tape.op()
    whole = shard.tensor(core.batch * core.seq * shard.cp, core.kv_heads * (core.qk_size + core.v_size))
    op.launch(Launch(collective("all_gather", whole, "cp", module=core.module)))
    op.back(collective("reduce_scatter", whole, "cp", module=core.module))
    keys = core.seq * shard.cp
    if core.causal:
        keys = keys // 2  # on average: slices from both ends, half of the diagonal is masked
    return attend(tape, shard, core, core.seq, keys, causal=False)


def _ring(tape: Tape, shard: Shard, core: Core) -> Tensor:
    """One causal piece, then ``cp - 1`` full ones over half of the scores while the next keys travel."""
    keys = shard.tensor(core.batch * core.seq, core.kv_heads * (core.qk_size + core.v_size))
    pieces = [(core.seq, core.seq, core.causal)]
    pieces += [(core.seq, core.seq // 2 if core.causal else core.seq, False)] * (shard.cp - 1)
    out = shard.tensor(core.batch * core.seq, core.heads * core.v_size)
    op = tape.op(again=True)
    # Backward sends the gradients of keys and values on with them.
    both = keys.like(2, *keys.shape)
    travelling: Hashable = None
    for number, (queries, length, causal) in enumerate(pieces):
        arriving, travelling = travelling, None
        last = number + 1 == len(pieces)
        if not last:
            travelling = tape.new_label()
            waits = tuple(label for label in (tape.last_label(), arriving) if label is not None)
            step = collective("send_recv", keys, "cp", stream=CP_STREAM, module=core.module, peer_delta=1)
            op.launch(Launch(step, travelling, waits))
        if arriving is not None:
            tape.next_waits_for(arriving)
        forward, backward = fused(shard, core, queries, length, causal=causal)
        op.launch(Launch(forward) if number else kept_by_attention(shard, core, forward))
        if number:
            op.run("softmax_lse_correction", [out, out], [out], op_class="elementwise", module=core.module)
        op.back(backward)
        if not last:
            label = tape.new_label()
            kernel = collective("send_recv", both, "cp", stream=CP_STREAM, module=core.module, peer_delta=1)
            op.back(kernel, label=label)
            if number + 2 == len(pieces):
                op.after.append(label)
    return out
