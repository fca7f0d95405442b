"""Attention under block masks, compiled: ``flex.py MASK`` ("causal", "documents", "none", "unknown")."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

BATCH, SEQ, HEADS, WIDTH = 2, 512, 4, 16
attend = torch.compile(flex_attention)


def block_mask(which):
    if which == "none":
        return None
    if which == "causal":
        return create_block_mask(lambda _b, _h, q, k: q >= k, None, None, SEQ, SEQ, device="cuda")
    # The first sequence has documents of 128 tokens, the second one; or those that the device drew.
    lengths = torch.tensor([[128], [512]], device="cuda")
    document = torch.arange(SEQ, device="cuda") // lengths
    if which == "unknown":
        document = torch.randint_like(document, 2)
    return create_block_mask(
        lambda b, _h, q, k: document[b, q] == document[b, k], BATCH, None, SEQ, SEQ, device="cuda"
    )


def main():
    dist.init_process_group("nccl")
    model = nn.Linear(WIDTH * HEADS, 2 * WIDTH * HEADS).to("cuda", torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        mask = block_mask(sys.argv[1])
        x = torch.randn(BATCH, SEQ, WIDTH * HEADS, device="cuda", dtype=torch.bfloat16)
        parts = model(x).view(BATCH, SEQ, 2 * HEADS, WIDTH).split([HEADS, HEADS // 2, HEADS // 2], dim=2)
        query, key, value = (part.transpose(1, 2) for part in parts)
        attend(query, key, value, block_mask=mask, enable_gqa=True).sum().backward()
        optimizer.step()


if __name__ == "__main__":
    main()
