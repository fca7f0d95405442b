"""Masks: blocks of them, and those that grow as large as scores."""

import torch
from torch.nn.attention.flex_attention import create_block_mask


def mask_for_every_query(device, padded_from, texts=3, length=1500):
    """As encoders expand which words are padding, and cut the row of one query out again."""
    words = torch.ones(texts, length, dtype=torch.int64, device=device)
    words[padded_from:, 1400:] = 0
    grid = torch.arange(length, device=device)[:, None] >= 0
    grid = grid & (words > 0)[:, None, None, :]
    bias = torch.where(grid, torch.zeros((), device=device), -1.0)
    found = [bias[-1, 0, 7, 1398:1402].tolist(), (bias.double() + 1)[-1, 0, -1, :2].tolist()]
    first = bias[:, 0, 0, :]
    found.append((first < 0).sum().item())
    first[:, ::500] = 2.0
    first[words == 0] = 3.0
    return [*found, (first > 0).sum().item(), first.flatten().max().item(), first[-1, 1000:1002].tolist()]


def blocks(mask, device):
    """How many blocks of keys each block of queries sees in part, and whole."""
    found = create_block_mask(mask, 2, None, 300, 300, device, BLOCK_SIZE=64)
    return found.kv_num_blocks.tolist(), found.full_kv_num_blocks.tolist()
