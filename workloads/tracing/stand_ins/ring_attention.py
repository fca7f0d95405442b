"""Causal attention over a sequence that is split among the ranks of a context-parallel group.

What Transformer Engine does by default (``cp_comm_type="p2p"``, context_parallel.py, AttnFuncWithCPAndKVP2P):
keys and values go round the group while attention on those received before runs on two streams in turn;
backward, their gradients go round one step behind.  Every rank has one chunk of the sequence from its front
and one from its back, so that causal attention is half of each exchange for all.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

_FORWARD = torch.ops.aten._scaled_dot_product_flash_attention
_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_backward


def ring_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, group: Any, side: Any
) -> torch.Tensor:
    """Attention of (sequence, batch, heads, width), of which every rank of ``group`` has two chunks.

    ``side``: the second stream.  Keys may have fewer heads than queries.
    """
    repeats = query.shape[2] // key.shape[2]
    if repeats > 1:
        key, value = key.repeat_interleave(repeats, 2), value.repeat_interleave(repeats, 2)
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
        pair = torch.stack((key, value))
        output, parts = torch.zeros_like(query), []
        requests: list[Any] = []
        for step in range(size):
            _wait(requests)
            following = torch.empty_like(pair)
            requests = _pass_on(pair, following, rank, size, group) if step + 1 < size else []
            streams[step % 2].wait_stream(streams[0])
            with torch.cuda.stream(streams[step % 2]):
                part, keys = _part(query, step, rank), _keys(pair, step, rank)
                parts.append(_FORWARD(part, keys[0], keys[1], 0.0, step == 0))
            pair = following
        streams[0].wait_stream(side)
        for step, found in enumerate(parts):  # weighted by their sums of exponentials
            _part(output, step, rank).add_(found[0] * found[1].unsqueeze(-1).to(output.dtype))
        ctx.save_for_backward(query, key, value, output)
        ctx.parts, ctx.group, ctx.streams = [found[1:8] for found in parts], group, streams
        return output

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        query, key, value, output = ctx.saved_tensors
        rank, size = dist.get_rank(ctx.group), dist.get_world_size(ctx.group)
        pair = torch.stack((key, value))
        grad_query, grads = torch.zeros_like(query), torch.zeros_like(pair)
        requests: list[Any] = []
        for step in range(size):
            _wait(requests)
            # Keys and values with the gradients gathered so far; no gradients yet in the first step, no keys
            # and values needed any more in the last.
            sent = pair if step == 0 else grads if step == size - 1 else torch.stack((pair, grads))
            following = torch.empty_like(sent)
            part, keys = _part(query, step, rank), _keys(pair, step, rank)
            saved = ctx.parts[step]
            ctx.streams[step % 2].wait_stream(ctx.streams[0])  # for gradients, and what has arrived
            with torch.cuda.stream(ctx.streams[step % 2]):
                found = _BACKWARD(
                    *(_part(grad, step, rank), part, keys[0], keys[1], _part(output, step, rank)),
                    *(*saved[:5], 0.0, step == 0, *saved[5:]),
                )
            ctx.streams[0].wait_stream(ctx.streams[step % 2])
            _part(grad_query, step, rank).add_(found[0])
            _keys(grads, step, rank).add_(torch.stack((found[1], found[2])))
            requests = _pass_on(sent, following, rank, size, ctx.group)
            if 0 < step < size - 1:
                pair, grads = following[0], following[1]
            else:
                pair, grads = (following, grads) if step == 0 else (pair, following)
        _wait(requests)
        return grad_query, grads[0], grads[1], None, None


def _part(query: torch.Tensor, step: int, rank: int) -> torch.Tensor:
    """Queries that see anything of what came in ``step``: behind a later rank, the back chunk alone."""
    return query if step <= rank else query.narrow(2, query.shape[2] // 2, query.shape[2] // 2)


def _keys(pair: torch.Tensor, step: int, rank: int) -> torch.Tensor:
    """Keys and values seen: of an earlier rank, the front chunk alone."""
    return pair.narrow(3, 0, pair.shape[3] // 2) if 0 < step <= rank else pair


def _pass_on(sent: torch.Tensor, received: torch.Tensor, rank: int, size: int, group: Any) -> list[Any]:
    """To the next rank and from the one before; ranks take turns in what they issue first."""
    send = (dist.isend, sent, (rank + 1) % size)
    receive = (dist.irecv, received, (rank - 1) % size)
    calls = (send, receive) if rank % 2 == 0 else (receive, send)
    return [call(tensor, dist.get_global_rank(group, peer), group=group) for call, tensor, peer in calls]


def _wait(requests: list[Any]) -> None:
    for request in requests:
        request.wait()
