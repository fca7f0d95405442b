"""Models with a loss, compiled: ``compiled.py gpt | llama [moved]``; a test runs them on the CPU, too."""

import importlib
import sys

import torch
from torch import nn
from torch.nn import functional as fun

VOCAB, WIDTH, HEADS, LENGTH, BATCH, LAYERS = 1000, 64, 4, 64, 2, 3


def attend(q, k, v):
    """(batch, length, width) of heads apart, causal."""
    b, t, c = q.shape
    q, k, v = (one.view(b, t, HEADS, c // HEADS).transpose(1, 2) for one in (q, k, v))
    return fun.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c)


class GPTBlock(nn.Module):
    """Layer norms and GELU."""

    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.out(attend(*self.qkv(self.ln1(x)).split(WIDTH, dim=2)))
        return x + self.down(fun.gelu(self.up(self.ln2(x))))


class Norm(nn.Module):
    """A root-mean-square norm written out."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * self.weight


class LlamaBlock(nn.Module):
    """Norms written out and a gated SiLU."""

    def __init__(self):
        super().__init__()
        self.n1, self.n2 = Norm(), Norm()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.w1, self.w3 = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.w2 = nn.Linear(3 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        y = self.n1(x)
        x = x + self.o(attend(self.q(y), self.k(y), self.v(y)))
        y = self.n2(x)
        return x + self.w2(fun.silu(self.w1(y)) * self.w3(y))


class Model(nn.Module):
    """Tokens to the loss of predicting them."""

    def __init__(self, block, norm):
        super().__init__()
        self.wte = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(block() for _ in range(LAYERS))
        self.norm, self.head = norm(), nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, ids):
        x = self.wte(ids)
        for block in self.blocks:
            x = block(x)
        return fun.cross_entropy(self.head(self.norm(x)).float().view(-1, VOCAB), ids.view(-1))


def made(name):
    """The model, and whether it runs under autocast."""
    if name == "gpt":
        return Model(GPTBlock, lambda: nn.LayerNorm(WIDTH)), True
    return Model(LlamaBlock, Norm).bfloat16(), False


if __name__ == "__main__":
    if "moved" in sys.argv:
        config = importlib.import_module("torch._inductor.config")
        config.reorder_for_compute_comm_overlap = True
    model, mixed = made(sys.argv[1])
    model = torch.compile(model.cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        ids = torch.randint(0, VOCAB, (BATCH, LENGTH), device="cuda")
        with torch.autocast("cuda", torch.bfloat16, enabled=mixed):
            loss = model(ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
