"""Operators whose results are as long as the values say."""

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("nccl")
    torch.cuda.set_device(0)
    weight = torch.nn.Parameter(torch.randn(16, 4, device="cuda"))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    tokens = torch.randint(0, 16, (32,), device="cuda")
    for _ in range(3):
        found = torch.unique(tokens)
        rows = weight[found % 16]
        kept = rows[rows.sum(1) > 0]
        bins = torch.bincount(tokens, minlength=16)
        repeated = weight.repeat_interleave(bins, 0)
        lengths = bins.tolist()
        (kept.sum() + repeated.sum() * (1 + sum(lengths))).backward()
        optimizer.step()


main()
