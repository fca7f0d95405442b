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


def counted(x: torch.Tensor) -> torch.Tensor:
    """A product in tiles that a tuner chose, and the sums of the lower half of the scores; x is (8, 64)."""
    import triton
    import triton.language as tl

    @triton.jit
    def halved(block):  # type: ignore[no-untyped-def]
        return tl.where(block > 0, block, 0.5 * block)

    @triton.autotune(configs=[triton.Config({"BM": 16, "BK": 32}, num_warps=4)], key=["K"])
    @triton.jit
    def product_kernel(a, b, c, M, N, K, BM: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
        rows, columns = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, BN)
        inner = tl.arange(0, BK)
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for _ in range(0, tl.cdiv(K, BK)):
            left = tl.load(a + rows[:, None] * K + inner[None, :], mask=inner[None, :] < K, other=0.0)
            right = tl.load(b + inner[:, None] * N + columns[None, :])
            acc += tl.dot(left, right)
            inner += BK
        inside = (rows[:, None] < M) & (columns[None, :] < N)
        tl.store(c + rows[:, None] * N + columns[None, :], halved(acc), mask=inside)

    @triton.jit
    def causal_kernel(scores, ends, sums, T, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
        row = tl.program_id(0)
        total = tl.zeros((BLOCK,), dtype=tl.float32)
        tile = tl.make_block_ptr(scores, (T, T), (T, 1), (row * BLOCK, 0), (BLOCK, BLOCK), (1, 0))
        for _ in range(row + 1):
            total += tl.sum(tl.load(tile, boundary_check=(0, 1)), axis=1)
            tile = tl.advance(tile, (0, BLOCK))
        for _ in range(tl.load(ends + row)):
            tl.atomic_add(sums + row, tl.sum(total))

    a, b = torch.randn(40, 64, device="cuda"), torch.randn(64, 32, device="cuda")
    c, scores = torch.empty(40, 32, device="cuda"), torch.empty(64, 64, device="cuda")
    product_kernel[lambda meta: (triton.cdiv(40, meta["BM"]),)](a, b, c, 40, 32, 64, BN=32)
    ends = torch.tensor([1, 0, 2, 1]).cuda()
    causal_kernel[(4,)](scores, ends, torch.zeros(4, device="cuda"), 64, BLOCK=16)
    return doubled(x)


def packed(x: torch.Tensor) -> torch.Tensor:
    """Causal attention of xformers in sequences of 3 and 5 tokens; then a convolution in 64 groups."""
    from xformers.ops import SwiGLU, fmha, memory_efficient_attention

    mask, together = fmha.BlockDiagonalMask.from_tensor_list([x[None, :3], x[None, 3:]])
    one_head = together.unsqueeze(2).bfloat16().requires_grad_()
    seen = memory_efficient_attention(one_head, one_head, one_head, attn_bias=mask.make_causal())
    assert [part.shape for part in mask.split(seen)] == [(1, 3, 1, 64), (1, 5, 1, 64)]
    assert fmha.attn_bias.LowerTriangularMask().causal and not hasattr(fmha, "no_such_thing")
    global wide
    wide = wide or nn.ModuleList([SwiGLU(64, 96), nn.Conv1d(64, 64, 3, padding=1, groups=64)]).cuda()
    gated = wide[0](seen.float().view(1, 8, 64))
    result: torch.Tensor = wide[1](gated.transpose(1, 2)).view(64, 8).t()
    return result


wide: nn.ModuleList | None = None


def odd(x: torch.Tensor) -> torch.Tensor:
    import triton

    @triton.jit
    def odd_kernel(source):  # type: ignore[no-untyped-def]
        len(source)  # no kernel can

    odd_kernel[(1,)](x)
    return x


@torch.library.custom_op("simcore_tests::shifted", mutates_args=())
def shifted(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if torch.cuda.current_stream() else x.clone()


@shifted.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("simcore_tests::sent", mutates_args=())
def sent(x: torch.Tensor, peer: int) -> None:
    """A library outside of torch would be called here."""


@sent.register_fake
def _(x: torch.Tensor, peer: int) -> None:
    """Nothing comes out."""


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
        elif how == "packed":
            x = packed(x)
        elif how == "odd":
            x = odd(x)
        elif how == "counted":
            x = shifted(counted(x))
            sent(x, 1)
        elif how == "operator":
            x = torch.ops.mine.attention(x, x, x)
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


main()
