"""A GPT (--style gpt2) or Llama (--style llama), trained on random tokens with plain torch."""

import argparse

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
for name, value in (
    *(("layers", 12), ("hidden", 768), ("heads", 12), ("kv_heads", 0), ("seq", 1024), ("batch", 8)),
    *(("vocab", 50304), ("steps", 5), ("accumulate", 1)),
):
    parser.add_argument("--" + name, type=int, default=value)
parser.add_argument("--style", default="gpt2")
parser.add_argument("--precision", default="autocast")
parser.add_argument("--optimizer", default="foreach")
parser.add_argument("--dropout", type=float, default=0.0)
parser.add_argument("--clip", type=float, default=0.0)
parser.add_argument("--checkpoint", action="store_true")
args = parser.parse_args()
device = "cuda"
torch.manual_seed(1)


def turned(t, s):
    other = torch.cat((-t[..., half:], t[..., :half]), dim=-1)
    return t * cos[:s].to(t.dtype) + other * sin[:s].to(t.dtype)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.size = args.hidden // args.heads
        self.kv = args.kv_heads or args.heads
        bias = args.style == "gpt2"
        self.qkv = nn.Linear(args.hidden, (args.heads + 2 * self.kv) * self.size, bias=bias)
        self.proj = nn.Linear(args.hidden, args.hidden, bias=bias)

    def forward(self, x):
        b, s, _ = x.shape
        q, k, v = self.qkv(x).split(
            [args.heads * self.size, self.kv * self.size, self.kv * self.size], dim=-1
        )
        q, k, v = (t.view(b, s, -1, self.size).transpose(1, 2) for t in (q, k, v))
        if args.style == "llama":
            q, k = turned(q, s), turned(k, s)
        y = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=self.kv != args.heads, dropout_p=args.dropout
        )
        return F.dropout(self.proj(y.transpose(1, 2).reshape(b, s, -1)), args.dropout)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        bias = args.style == "gpt2"
        wide = 4 * args.hidden if bias else 256 * ((8 * args.hidden // 3 + 255) // 256)
        self.up = nn.Linear(args.hidden, wide, bias=bias)
        self.gate = None if bias else nn.Linear(args.hidden, wide, bias=False)
        self.down = nn.Linear(wide, args.hidden, bias=bias)

    def forward(self, x):
        y = F.gelu(self.up(x)) if self.gate is None else F.silu(self.gate(x)) * self.up(x)
        return F.dropout(self.down(y), args.dropout)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        norm = nn.LayerNorm if args.style == "gpt2" else nn.RMSNorm
        self.norm1, self.attention, self.norm2, self.mlp = (
            norm(args.hidden),
            Attention(),
            norm(args.hidden),
            Mlp(),
        )

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(args.vocab, args.hidden)
        self.places = nn.Embedding(args.seq, args.hidden) if args.style == "gpt2" else None
        self.blocks = nn.ModuleList(Block() for _ in range(args.layers))
        self.norm = (nn.LayerNorm if args.style == "gpt2" else nn.RMSNorm)(args.hidden)
        self.head = nn.Linear(args.hidden, args.vocab, bias=False)
        if args.style == "gpt2":
            self.head.weight = self.tokens.weight

    def forward(self, tokens, labels):
        x = self.tokens(tokens)
        if self.places is not None:
            x = F.dropout(x + self.places(torch.arange(tokens.shape[1], device=tokens.device)), args.dropout)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if args.checkpoint else block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, args.vocab).float(), labels.view(-1))


half = args.hidden // args.heads // 2
angle = torch.arange(args.seq)[:, None] / 10000 ** (torch.arange(half)[None] / half)
cos, sin = (f(torch.cat((angle, angle), dim=-1)).to(device) for f in (torch.cos, torch.sin))
model = Model()
if args.precision == "bf16":
    model = model.to(torch.bfloat16)
model = model.to(device)
kinds = {"foreach": {"foreach": True}, "fused": {"fused": True}, "loop": {"foreach": False}}
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **kinds[args.optimizer])
for _step in range(args.steps):
    optimizer.zero_grad(set_to_none=True)
    for _ in range(args.accumulate):
        tokens = torch.randint(0, args.vocab, (args.batch, args.seq + 1), device=device)
        with torch.autocast("cuda", torch.bfloat16, enabled=args.precision == "autocast"):
            loss = model(tokens[:, :-1], tokens[:, 1:].contiguous())
        (loss / args.accumulate).backward()
    if args.clip:
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
    optimizer.step()
print(args.style, loss.item())
