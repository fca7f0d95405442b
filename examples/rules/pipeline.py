"""A pipeline that sends by a library of its own, `ring`: own_p2p.py says what its ops do."""

import os

import torch
import torch.distributed as dist
from torch import nn

HIDDEN, TOKENS, MICROBATCHES = 4096, 8192, 8


@torch.library.custom_op("ring::put", mutates_args=())
def put(data: torch.Tensor, peer: int) -> None:
    """Write to the buffer of a peer."""


@torch.library.custom_op("ring::get", mutates_args=("buffer",))
def get(buffer: torch.Tensor, peer: int) -> None:
    """Wait until a peer has written to a buffer of this rank."""


@put.register_fake
def _(data: torch.Tensor, peer: int) -> None:
    """Nothing comes out."""


@get.register_fake
def _(buffer: torch.Tensor, peer: int) -> None:
    """Nothing comes out."""


def main() -> None:
    """One step of GPipe: all forwards, then all backwards."""
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    block = nn.Sequential(nn.Linear(HIDDEN, 4 * HIDDEN), nn.GELU(), nn.Linear(4 * HIDDEN, HIDDEN))
    stage = nn.Sequential(nn.LayerNorm(HIDDEN), block).to(device, torch.bfloat16)
    optimizer = torch.optim.AdamW(stage.parameters(), fused=True)
    for _ in range(3):
        passed = []
        for _ in range(MICROBATCHES):
            entered = torch.empty(TOKENS, HIDDEN, device=device, dtype=torch.bfloat16)
            if rank:
                get(entered, rank - 1)
            entered.requires_grad_()
            left = stage(entered)
            if rank < world - 1:
                put(left.detach(), rank + 1)
            passed.append((entered, left))
        for entered, left in passed:
            gradient = torch.ones_like(left)
            if rank < world - 1:
                get(gradient, rank + 1)
            left.backward(gradient)
            if rank:
                put(entered.grad, rank - 1)
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
