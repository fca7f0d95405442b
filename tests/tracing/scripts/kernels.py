"""Kernels that torch has no operators for: ``kernels.py triton`` or ``operator``; those of a compiler."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.out(torch.nn.functional.gelu(self.norm(x) * 2 + 1) * x)
        return y


def doubled(x: torch.Tensor) -> torch.Tensor:
    import triton
    import triton.language as tl

    @triton.jit
    def double_kernel(source, target, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(target + at, 2 * tl.load(source + at, mask=at < n), mask=at < n)

    target = torch.empty_like(x)
    double_kernel[(triton.cdiv(x.numel(), 256),)](x, target, x.numel(), BLOCK=256)
    return target


def main() -> None:
    dist.init_process_group("nccl")
    torch.cuda.set_device(0)
    model: nn.Module = Norm().cuda()
    how = sys.argv[1]
    if how == "compiled":
        model = torch.compile(model)
    elif how == "method":
        model.compile()
    elif how == "ddp":
        model = DistributedDataParallel(
            torch.compile(nn.Sequential(model, Norm().cuda())), bucket_cap_mb=0.01
        )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        x = torch.randn(8, 64, device="cuda")
        if how == "triton":
            x = doubled(x)
        elif how == "operator":
            x = torch.ops.mine.attention(x, x, x)
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


main()
