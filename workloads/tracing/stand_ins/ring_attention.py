"""Causal attention over a sequence that is split among the ranks of a context-parallel group.

What Transformer Engine 2.9 does by default (``cp_comm_type="p2p"``, context_parallel.py,
AttnFuncWithCPAndKVP2P): keys and values, of as many heads as they have, go round the group.  Forward,
attention on those received before runs beside that, on two streams in turn.  Backward, they go the other way,
from those received last to the own, and their gradients with them; what a rank adds to them travels in the
step after.  Every rank has one chunk of the sequence from its front and one from its back, so that causal
attention is half of each exchange for all.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from workloads.tracing import kernels
from workloads.tracing.kernels import KernelCost

_FORWARD = torch.ops.aten._scaled_dot_product_flash_attention
_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_backward


def ring_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, group: Any, side: Any
) -> torch.Tensor:
    """Attention of (sequence, batch, heads, width), of which every rank of ``group`` has two chunks.

    ``side``: the second stream.  Keys may have fewer heads than queries.
    """
    split = [one.permute(1, 2, 0, 3) for one in (query, key, value)]
    found: torch.Tensor = _Ring.apply(*split, group, side)  # type: ignore[no-untyped-call]
    return found.permute(2, 0, 1, 3)


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, group: Any, side: Any
    ) -> torch.Tensor:
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        streams = (torch.cuda.current_stream(), side)
        buffers, parts = [torch.stack((key, value))], []
        requests: list[Any] = []
        sums, summed = query.new_empty(0), torch.cuda.Event()  # type: ignore[no-untyped-call]
        for step in range(size + 1):
            if step < size:
                with torch.cuda.stream(streams[step % 2]):
                    _wait(requests)
                    if step + 1 < size:
                        buffers.append(torch.empty_like(buffers[step]))
                        requests = _pass_on(buffers[step], buffers[step + 1], 1, group)
                    part, keys = _part(query, step, rank), _keys(buffers[step], step, rank)
                    parts.append(_FORWARD(part, keys[0], keys[1], 0.0, step == 0))
            if step > 0:  # the part before is summed up while this one is computed
                stream = streams[(step - 1) % 2]
                if step > 1:
                    stream.wait_event(summed)
                with torch.cuda.stream(stream):
                    sums = _summed(sums, parts[step - 1][1], step - 1, rank)
                    summed.record(stream)
        streams[0].wait_stream(side)
        output = torch.empty_like(query)
        for step, found in enumerate(parts):
            part = _part(output, step, rank)
            reads = [found[0], _part(sums, step, rank), found[1]]
            _launch("out_correction" if step else "out_correction_init", [part, *reads][step == 0 :], part)
        ctx.save_for_backward(query, buffers[-1], output)
        ctx.parts, ctx.group = [found[1:8] for found in parts], group
        return output

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        query, pair, output = ctx.saved_tensors
        rank, size = dist.get_rank(ctx.group), dist.get_world_size(ctx.group)
        grad_query = torch.empty_like(query)
        here, there = pair.new_empty(2, *pair.shape), pair.new_empty(2, *pair.shape)
        here[0].copy_(pair)  # keys and values, then their gradients
        for number in range(size):
            step = size - 1 - number  # of forward, in which these keys came
            # No gradients yet in the first exchange, no keys and values needed any more in the last.
            what = slice(0, 1) if number == 0 else slice(1, 2) if step == 0 else slice(0, 2)
            requests = _pass_on(here[what], there[what], -1, ctx.group)
            part, keys = _part(query, step, rank), _keys(here[0], step, rank)
            saved = ctx.parts[step]
            found = _BACKWARD(
                *(_part(grad, step, rank), part, keys[0], keys[1], _part(output, step, rank)),
                *(*saved[:5], 0.0, step == 0, *saved[5:]),
            )
            _add(_part(grad_query, step, rank), found[0], first=number == 0)
            _wait(requests)
            for gathered, one in zip(_keys(there[1], step, rank), found[1:3], strict=True):
                _add(gathered, one, first=number == 0)
            here, there = there, here
        return grad_query, here[1, 0], here[1, 1], None, None


def _part(tensor: torch.Tensor, step: int, rank: int) -> torch.Tensor:
    """Queries, or what belongs to them, that see anything of what came in ``step``: behind a later rank, the
    back chunk alone.
    """
    half = tensor.shape[2] // 2
    return tensor if step <= rank else tensor.narrow(2, half, half)


def _keys(pair: torch.Tensor, step: int, rank: int) -> torch.Tensor:
    """Keys and values seen: of an earlier rank, the front chunk alone."""
    return pair.narrow(3, 0, pair.shape[3] // 2) if 0 < step <= rank else pair


def _summed(sums: torch.Tensor, of_part: torch.Tensor, step: int, rank: int) -> torch.Tensor:
    """Sums of exponentials with those of the part of ``step``."""
    if step == 0:
        return of_part.clone()
    seen = _part(sums, step, rank)
    _launch("softmax_lse_correction", [seen, of_part], seen)
    return sums


def _add(total: torch.Tensor, one: torch.Tensor, *, first: bool) -> None:
    if first:
        total.copy_(one)
    else:
        total.add_(one)


def _launch(name: str, reads: list[torch.Tensor], written: torch.Tensor) -> None:
    """A kernel that Transformer Engine fuses."""
    cost = KernelCost(op_class="elementwise")
    kernels.launch(f"flash_attn_fwd_{name}", reads=reads, writes=[written], cost=cost)


def _pass_on(sent: torch.Tensor, received: torch.Tensor, step: int, group: Any) -> list[Any]:
    """To the rank ``step`` places on and from that before; ranks take turns in what they issue first.  Two
    ranks, before Blackwell, exchange in one batch.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    peers = [dist.get_global_rank(group, (rank + way) % size) for way in (step, -step)]
    calls = [(dist.isend, sent, peers[0]), (dist.irecv, received, peers[1])]
    if rank % 2:
        calls.reverse()
    if size == 2 and torch.cuda.get_device_capability() < (10, 0):
        found: list[Any] = dist.batch_isend_irecv([dist.P2POp(*call, group) for call in calls])
        return found
    return [call(tensor, peer, group=group) for call, tensor, peer in calls]


def _wait(requests: list[Any]) -> None:
    for request in requests:
        request.wait()
