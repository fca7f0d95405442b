"""Runs in a worker process: operators through the shape cache and through torch's own fake mode."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as functional

from workloads.tracing.fake import host_values
from workloads.tracing.record.recorder import Recorder


def calls() -> dict[str, Any]:
    """Results of operators of many kinds on inputs that they share."""
    x = torch.empty(4, 6, 8, device="cuda").transpose(1, 2)
    y = torch.empty(8, 1, device="cuda", dtype=torch.bfloat16)
    picture = torch.empty(2, 3, 8, 8, device="cuda").to(memory_format=torch.channels_last)
    index = torch.empty(5, dtype=torch.long, device="cuda")
    query = torch.empty(2, 4, 16, 8, device="cuda", dtype=torch.bfloat16)
    made: dict[str, Any] = {
        "promoted": x + y,
        "integer": x * 2,
        "float": index * 2.0,
        "compared": x > 0,
        "reduced": x.sum(-1, keepdim=True),
        "product": x @ torch.empty(4, 6, 8, device="cuda"),
        "dense": torch.relu(x),
        "convolved": functional.conv2d(picture, torch.empty(5, 3, 3, 3, device="cuda"), padding=1),
        "normed": functional.layer_norm(picture, picture.shape[1:]),
        "attention": functional.scaled_dot_product_attention(query, query, query, is_causal=True),
        "picked": x[0].index_select(0, index),
        "split": torch.split(x, [2, 6], 1)[1],
        "strided": x[:, ::2],
        "viewed": x.permute(2, 0, 1)[1].unsqueeze(0).expand(3, -1, -1),
        "topk": x.topk(2)[1],
        "host": x.cpu(),
        "cast": x.to(torch.float16),
        "in_place": x.mul_(2),
        "empty": torch.empty(0, 4, device="cuda") * 2,
        "added_in_place": torch.addmm(
            y.float(), torch.empty(8, 3, device="cuda"), torch.empty(3, 8, device="cuda")
        ),
    }
    made["shares_storage"] = {name: _shares(tensor, x) for name, tensor in made.items()}
    return made


def _shares(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(tensor.untyped_storage()._cdata == other.untyped_storage()._cdata)


def _seen(results: dict[str, Any]) -> dict[str, Any]:
    return {
        name: (tuple(one.shape), one.stride(), one.storage_offset(), str(one.dtype), str(one.device))
        if isinstance(one, torch.Tensor)
        else one
        for name, one in results.items()
    }


def both() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(torch's own, three rounds with the cache)."""
    mode = host_values.make_fake_mode()
    with mode:
        plain = _seen(calls())
    with mode, Recorder():
        return plain, [_seen(calls()) for _ in range(3)]
