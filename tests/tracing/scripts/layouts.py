"""Tensors that are not dense: ``layouts.py sparse | neighbours | jagged | chosen``."""

import sys

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel


def sparse():
    """Gradients of tables are rows: one table adds them as they are, the other one for each word."""
    words = torch.tensor([1, 5, 5, 7, 1, 1], device="cuda")
    table, bags = nn.Embedding(10, 4, sparse=True).cuda(), nn.EmbeddingBag(10, 4, sparse=True).cuda()
    plain, adam = torch.optim.SGD(bags.parameters(), lr=0.1), torch.optim.SparseAdam(table.parameters())
    for _ in range(3):
        loss = table(words).sum() + bags(words, torch.tensor([0, 2], device="cuda")).sum()
        loss.backward()
        assert bags.weight.grad.layout is torch.sparse_coo
        assert bags.weight.grad._nnz() == 6 and bags.weight.grad.coalesce()._nnz() == 3
        plain.step()
        adam.step()
        plain.zero_grad()
        adam.zero_grad()


def neighbours():
    """A layer over a graph: a sparse matrix of the host times rows of nodes."""
    edges = torch.tensor([[0, 1, 2, 3, 3], [1, 2, 3, 0, 1]])
    matrix = torch.sparse_coo_tensor(edges, torch.ones(5), (4, 4)).cuda()
    assert matrix.is_cuda and matrix._nnz() == 5
    model = nn.Sequential(nn.Linear(4, 4).cuda(), Times(matrix))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.zeros(4, 4, device="cuda")).sum().backward()
        optimizer.step()


class Times(nn.Module):
    """A matrix that is not learned times what comes."""

    def __init__(self, matrix):
        super().__init__()
        self.matrix = matrix

    def forward(self, x):
        return torch.sparse.mm(self.matrix, x)


def jagged():
    """Attention over sequences of 5 and 9, none of them padded."""
    model = nn.Linear(32, 32, device="cuda", dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        parts = [torch.zeros(length, 32) for length in (5, 9)]
        x = torch.nested.nested_tensor(parts, layout=torch.jagged, device="cuda", dtype=torch.bfloat16)
        heads = model(x).unflatten(-1, [4, 8]).transpose(1, 2)
        nn.functional.scaled_dot_product_attention(heads, heads, heads).values().sum().backward()
        optimizer.step()


def chosen():
    """Attention of several kinds, for torch to choose a kernel."""
    model = nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attend = nn.functional.scaled_dot_product_attention
    for _ in range(3):
        whole = model(torch.zeros(2, 4, 8, 64, device="cuda"))
        half, wide = whole.bfloat16(), torch.cat([whole] * 4, -1).bfloat16()
        found = [
            attend(half, half, half, is_causal=True),
            attend(half, half, half),
            attend(whole, whole, whole),
            attend(wide, wide, wide, is_causal=True),
        ]
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
            found.append(attend(half, half, half, is_causal=True))
        mask = torch.rand(8, 8, device="cuda") > 0.5
        found.append(attend(half, half, half, mask))
        found.append(attend(half, half, half, half[..., :8]))
        sum(one.float().sum() for one in found).backward()
        optimizer.step()


if __name__ == "__main__":
    vars()[sys.argv[1]]()
