"""A Llama in plain PyTorch, trained by what a DeepSpeed configuration says: ``zero_llama.py FILE``.

Four layers of 256, eight heads on four, as ``tests/jobs/launch/traced_cases.py`` describes it.
"""

import sys

import deepspeed
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

HIDDEN, LAYERS, HEADS, GROUPS, FFN, VOCAB, TOKENS = 256, 4, 8, 4, 1024, 8192, 256
SIZE = HIDDEN // HEADS


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN))

    def forward(self, x):
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def turned(x):
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.ffn_norm = Norm(), Norm()
        self.q, self.o = (nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(HIDDEN, GROUPS * SIZE, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(HIDDEN, FFN, bias=False) for _ in range(2))
        self.down = nn.Linear(FFN, HIDDEN, bias=False)

    def forward(self, x, cos, sin):
        h = self.norm(x)
        q, k, v = (one(h).unflatten(-1, (-1, SIZE)).transpose(1, 2) for one in (self.q, self.k, self.v))
        q, k = (one * cos + turned(one) * sin for one in (q, k))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(a.transpose(1, 2).flatten(2))
        h = self.ffn_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm = nn.Embedding(VOCAB, HIDDEN), Norm()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(HIDDEN, VOCAB, bias=False)

    def forward(self, tokens):
        x, at = self.embed(tokens), torch.arange(TOKENS, device=tokens.device)
        angles = torch.outer(at.float(), 1e4 ** (-torch.arange(0, SIZE, 2, device=tokens.device) / SIZE))
        angles = torch.cat((angles, angles), -1)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return F.cross_entropy(self.head(self.norm(x)).float().view(-1, VOCAB), tokens.view(-1))


model = Llama()
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=sys.argv[1])
for _ in range(3 * engine.gradient_accumulation_steps()):
    shape = engine.train_micro_batch_size_per_gpu(), TOKENS
    engine.backward(engine(torch.randint(0, VOCAB, shape, device=engine.device)))
    engine.step()
