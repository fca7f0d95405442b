"""FBGEMM's lookups for a traced TorchRec program: ``trace_workload.py SCRIPT --setup`` this file.

FBGEMM's lookups have no form for tensors without values.  Here they are two kernels: what a lookup allocates
and reads, and what its update does, in backward as there; the tables of a module are one call.  Slices of
tables are plain parameters.  Names of kernels say that they are stand-ins (``fbgemm_standin::``).  torchrec
and fbgemm-gpu-cpu of a release that fits torch must be installed.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import fbgemm_gpu.split_embedding_codegen_lookup_invokers as invokers
import torch
import torchrec.distributed.batched_embedding_kernel as kernels
from torch import Tensor


@torch.library.custom_op("fbgemm_standin::table_lookup", mutates_args=("sums",))
def table_lookup(sums: Tensor, weights: Tensor, keys: Tensor, offsets: Tensor) -> None:
    """Sums of rows, ``[samples, columns of all tables]``."""
    del sums, weights, keys, offsets


@torch.library.custom_op("fbgemm_standin::table_update", mutates_args=("weights",))
def table_update(weights: Tensor, keys: Tensor, gradient: Tensor) -> None:
    """Gradients of rows and their optimizer."""
    del weights, keys, gradient


@table_lookup.register_fake
def _(sums: Tensor, weights: Tensor, keys: Tensor, offsets: Tensor) -> None:
    del sums, weights, keys, offsets


@table_update.register_fake
def _(weights: Tensor, keys: Tensor, gradient: Tensor) -> None:
    del weights, keys, gradient


class _Lookup(torch.autograd.Function):
    """Both; ``anchor`` is what has a gradient, so that backward comes by."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, told: Any) -> Tensor:
        del anchor
        samples = (told.offsets.numel() - 1) // (told.D_offsets.numel() - 1)
        sums: Tensor = told.dev_weights.new_empty(samples, int(told.total_D))
        table_lookup(sums, told.dev_weights.detach(), told.indices, told.offsets)
        ctx.told = told
        return sums

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        told = ctx.told
        table_update(told.dev_weights.detach(), told.indices, gradient)
        return torch.zeros_like(told.placeholder_autograd_tensor), None


def _invoke(common_args: Any, *_: Any, **__: Any) -> Tensor:
    """FBGEMM's entry for one optimizer."""
    return _Lookup.apply(common_args.placeholder_autograd_tensor, common_args)  # type: ignore[no-any-return, no-untyped-call]


def _slice(data: Tensor, start_offset: int, end_offset: int, num_embeddings: int, embedding_dim: int) -> Any:
    return torch.nn.Parameter(data.detach()[start_offset:end_offset].view(num_embeddings, embedding_dim))


for _module in pkgutil.iter_modules(invokers.__path__):
    if _module.name.startswith("lookup_") and not _module.name.startswith("lookup_args"):
        entry: Any = importlib.import_module(f"{invokers.__name__}.{_module.name}")
        entry.invoke = _invoke
kernels.TableBatchedEmbeddingSlice = _slice
