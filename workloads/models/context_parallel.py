"""Attention over a sequence that several ranks hold a part of.

Note [Context parallelism]
    Each rank holds two slices of the sequence, one from either end, so that causal work is even.
    "ring" (arXiv 2310.01889): keys and values travel round the ring while the piece at hand is worked on; the
    first piece is causal, the others are full over half of the scores.  "all_gather" (arXiv 2407.21783):
    keys and values are gathered first.  "ulysses" (arXiv 2309.14509): all_to_all trades tokens for heads.
    "torch" (torch/distributed/tensor/experimental/_attention.py): keys and values are gathered while the
    first piece is worked on, in forward and again in backward; results are merged in fp32; gradients of keys
    and values, in fp32, go to the next rank after each of cp pieces.  Where blocks are compiled, merging is
    one kernel, and exchanges are waited for where they begin: functional collectives are traced with their
    wait, and the compiler keeps that order.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from workloads.models.attention_core import Core, attend, fused, kept_by_attention, repeat_keys
from workloads.models.local import Shard
from workloads.models.op_tape import OpTape, TapedLaunch
from workloads.models.pieces import KernelLaunch
from workloads.models.tensors import Tensor, collective, compute

CP_STREAM = "cp"


def distributed_attention(tape: OpTape, shard: Shard, core: Core) -> Tensor:
    """Attention of this rank's queries to all keys; ``[tokens, heads * v_size]``."""
    if shard.software.repeat_keys and core.kv_heads < core.heads:
        core = repeat_keys(tape, shard, core)
    if shard.cp == 1:
        return attend(tape, shard, core, core.seq, core.num_keys, causal=core.causal)
    if shard.cp_style == "ulysses":
        return _ulysses(tape, shard, core)
    if shard.cp_style == "all_gather":
        return _gathered(tape, shard, core)
    if shard.cp_style == "torch":
        return _Merged(tape, shard, core).out
    return _ring(tape, shard, core)


def _ulysses(tape: OpTape, shard: Shard, core: Core) -> Tensor:
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


def _exchange(tape: OpTape, tensor: Tensor, module: str) -> None:
    kernel, op = collective("all_to_all", tensor, "cp", module=module), tape.op()
    op.launch(TapedLaunch(kernel))
    op.back(kernel)


def _gathered(tape: OpTape, shard: Shard, core: Core) -> Tensor:
    """Keys, then values; ranks' slices come one after the other and are copied into the sequence's order."""
    op = tape.op()
    for size in (core.qk_size, core.v_size):
        whole = shard.tensor(core.batch * core.seq * shard.cp, core.kv_heads * size)
        op.launch(TapedLaunch(collective("all_gather", whole, "cp", module=core.module)))
        op.run("aten::cat", [whole], [whole], module=core.module)
        op.back(compute("aten::cat", [whole], [whole], module=core.module))
        op.back(collective("reduce_scatter", whole, "cp", module=core.module))
    keys = core.seq * shard.cp
    if not shard.software.transformer_engine:  # which keeps its own part and gathers again
        core = replace(core, keys=keys)
    if core.causal:
        keys = keys // 2  # on average: slices from both ends, half of the diagonal is masked
    return attend(tape, shard, core, core.seq, keys, causal=False)


def _pieces(shard: Shard, core: Core) -> list[tuple[int, bool]]:
    """(keys, causal) for all queries: one causal piece, then ``cp - 1`` full ones over half of the scores."""
    other = (core.seq // 2, False) if core.causal else (core.seq, False)
    return [(core.seq, core.causal), *[other] * (shard.cp - 1)]


def _ring(tape: OpTape, shard: Shard, core: Core) -> Tensor:
    """Piece by piece while the next keys travel."""
    keys = shard.tensor(core.batch * core.seq, core.kv_heads * (core.qk_size + core.v_size))
    pieces = _pieces(shard, core)
    out = shard.tensor(core.batch * core.seq, core.heads * core.v_size)
    op = tape.op(again=True)
    # Backward sends the gradients of keys and values on with them.
    both = keys.like(2, *keys.shape)
    travelling: Hashable = None
    for number, (length, causal) in enumerate(pieces):
        arriving, travelling = travelling, None
        last = number + 1 == len(pieces)
        if not last:
            travelling = tape.new_label()
            waits = tuple(label for label in (tape.last_label(), arriving) if label is not None)
            step = collective("send_recv", keys, "cp", stream=CP_STREAM, module=core.module, peer_delta=1)
            op.launch(TapedLaunch(step, travelling, waits))
        if arriving is not None:
            tape.next_waits_for(arriving)
        forward, backward = fused(shard, core, core.seq, length, causal=causal)
        op.launch(TapedLaunch(forward) if number else kept_by_attention(shard, core, forward))
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


class _Merged:
    """Style "torch" of Note [Context parallelism], on one op; ``out`` is the result.

    Of pieces that a rank's later queries alone attend to, only half of the rows are merged (and then joined
    with the others by a copy); all ranks are taken to merge whole results, as the slowest does.
    """

    def __init__(self, tape: OpTape, shard: Shard, core: Core) -> None:
        self._tape, self._shard, self._module = tape, shard, core.module
        tokens = core.batch * core.seq
        self._keys = shard.tensor(tokens, core.kv_heads * (core.qk_size + core.v_size))
        self._key_grads = self._keys.like(*self._keys.shape, dtype="float32")
        self._compiled = shard.software.compiled
        self.out = shard.tensor(tokens, core.heads * core.v_size)
        self._sum = self.out.like(*self.out.shape, dtype="float32")
        self._queries = shard.tensor(tokens, core.heads * core.qk_size)
        self._op = tape.op(again=True)
        self._before: list[Hashable] = []  # what the next launch of backward waits for
        self._forward(core)
        self._backward(core)

    def _gather(self) -> KernelLaunch:
        whole = self._keys.like(self._keys.shape[0] * self._shard.cp, self._keys.shape[1])
        return collective("all_gather", whole, "cp", stream=CP_STREAM, module=self._module)

    def _forward(self, core: Core) -> None:
        op, tape, gathered = self._op, self._tape, self._tape.new_label()
        for kernel in self._joining():
            op.launch(TapedLaunch(kernel))
        op.launch(TapedLaunch(self._gather(), gathered))
        for number, (length, causal) in enumerate(_pieces(self._shard, core)):
            if number == (0 if self._compiled else 1):
                tape.next_waits_for(gathered)
            if self._passes_on(number):
                op.launch(TapedLaunch(self._joined()))
            kernel = fused(self._shard, core, core.seq, length, causal=causal)[0]
            op.launch(TapedLaunch(kernel) if number else kept_by_attention(self._shard, core, kernel))
            for name, ins, result in self._merging(number):
                op.run(name, ins, [result], op_class="elementwise", module=self._module)
        op.run("aten::_to_copy", [self._sum], [self.out], module=self._module)

    def _joining(self) -> list[KernelLaunch]:
        """What makes one tensor of keys and values, eagerly after each has been made contiguous."""
        half = self._keys.like(self._keys.numel // 2)
        copy = compute("aten::clone", [half], [half], module=self._module)
        return [*([] if self._compiled else [copy, copy]), self._joined()]

    def _joined(self) -> KernelLaunch:
        return compute("aten::cat", [self._keys], [self._keys], module=self._module)

    def _passes_on(self, number: int) -> bool:
        """Whether a round joins keys and values again: eagerly all but the last, though nothing is sent."""
        return not self._compiled and 0 < number < self._shard.cp - 1

    def _merging(self, number: int) -> list[tuple[str, list[Tensor], Tensor]]:
        """New sum: sum - sigmoid(lse of piece - lse of sum) (sum - piece).  What is done to lse is small."""
        whole, piece = self._sum, self.out
        if self._compiled:
            return [("merge_attention", [whole, piece], whole)] if number else []
        if not number:
            return [("aten::_to_copy", [piece], whole)]
        return [
            ("aten::_to_copy", [piece], whole), ("aten::sub.Tensor", [whole, whole], whole),
            ("aten::mul.Tensor", [whole], whole), ("aten::sub.Tensor", [whole, whole], whole),
        ]  # fmt: skip

    def _backward(self, core: Core) -> None:
        gathered = self._tape.new_label()
        half = self._key_grads.like(self._key_grads.numel // 2)
        for empty in () if self._compiled else (self._sum, half, half):
            self._back("aten::zeros_like", [], [empty])
        for kernel in self._joining():
            self._launch(kernel)
        self._op.back(self._gather(), label=gathered)
        sent: Hashable = None
        for number, (length, causal) in enumerate(_pieces(self._shard, core)):
            if number == (0 if self._compiled else 1):
                self._before.append(gathered)
            if self._passes_on(number):
                self._launch(self._joined())
            self._launch(fused(self._shard, core, core.seq, length, causal=causal)[1])
            if sent is not None:
                self._before.append(sent)
            self._adding(length == core.seq)
            sent = self._tape.new_label()
            # An all_to_all in which each rank has one partner.
            kernel = collective(
                "send_recv", self._key_grads, "cp", stream=CP_STREAM, module=self._module, peer_delta=1
            )
            self._op.back(kernel, label=sent)
            if self._compiled:
                self._before.append(sent)
            self._back("aten::add_.Tensor", [self._sum, self._queries], [self._sum])
        self._back("aten::_to_copy", [self._sum], [self._queries])
        if not self._compiled:
            self._before.append(sent)
        self._back("aten::_to_copy", [self._key_grads], [self._keys])

    def _adding(self, whole: bool) -> None:
        """Gradients of keys and values added to those that came, and made one tensor to pass on."""
        if self._compiled:
            self._back("aten::add_.Tensor", [self._key_grads, self._keys], [self._key_grads])
            return
        each, new = (one.like(one.numel // 2) for one in (self._key_grads, self._keys))
        if whole:
            for name, ins in (("aten::add_.Tensor", [each, new]), ("aten::clone", [each])):
                for _ in range(2):
                    self._back(name, ins, [each])
        else:  # of the first half of the keys; the other is joined to it
            part, added = each.like(each.numel // 2), new.like(new.numel // 2)
            for _ in range(2):
                self._back("aten::add_.Tensor", [part, added], [part])
                self._back("aten::cat", [each], [each])
        self._back("aten::cat", [self._key_grads], [self._key_grads])

    def _back(self, name: str, ins: list[Tensor], outs: list[Tensor]) -> None:
        self._launch(compute(name, ins, outs, op_class="elementwise", module=self._module))

    def _launch(self, kernel: KernelLaunch) -> None:
        self._op.back(kernel, waits=tuple(self._before))
        self._before.clear()
