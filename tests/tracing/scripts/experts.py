"""Mixtures of experts, written out: ``experts.py exchange`` sends tokens to 8 ranks with two experts each."""

import sys

import torch
import torch.distributed as dist
from torch import nn

TOKENS, WIDTH, EXPERTS, TOP_K = 64, 32, 16, 2


def exchange(tokens: torch.Tensor, out_splits: list[int], in_splits: list[int]) -> torch.Tensor:
    result = tokens.new_empty((sum(out_splits), WIDTH))
    dist.all_to_all_single(result, tokens, out_splits, in_splits)
    return result


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS)
        self.local = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS // dist.get_world_size()))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.gate(tokens).softmax(-1).topk(TOP_K, dim=-1)
        order = chosen.flatten().argsort()
        counts = torch.bincount(chosen.flatten(), minlength=EXPERTS)
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts)
        ranks = dist.get_world_size()
        in_splits = counts.view(ranks, -1).sum(1).tolist()
        out_splits = arriving.view(ranks, -1).sum(1).tolist()
        with torch.no_grad():
            received = exchange(tokens[order // TOP_K], out_splits, in_splits)
        # By local expert: of every sender, its tokens for the first, then for the second.
        owner = torch.arange(len(self.local), device=tokens.device).repeat(ranks).repeat_interleave(arriving)
        parts = [expert(received[owner == index]) for index, expert in enumerate(self.local)]
        sent_back = exchange(torch.cat(parts), in_splits, out_splits)
        return tokens + sent_back.sum(0) * weights.sum() + self.gate(tokens).mean()


class Eager(nn.Module):
    """As Mixtral's experts without fused kernels: each takes the tokens that chose it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.gate(tokens).softmax(-1).topk(TOP_K, dim=-1)
        result = torch.zeros_like(tokens)
        mask = nn.functional.one_hot(chosen, EXPERTS).permute(2, 1, 0)
        for index in (mask.sum((-1, -2)) > 0).nonzero():
            slot, token = torch.where(mask[index[0]])
            found = self.experts[int(index)](tokens[token])
            result.index_add_(0, token, found * weights[token, slot, None])
        return result


def main() -> None:
    dist.init_process_group("nccl")
    torch.cuda.set_device(0)
    model = (Experts() if sys.argv[1] == "exchange" else Eager()).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        model(torch.randn(TOKENS, WIDTH, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


main()
