"""Layers of Transformer Engine on two ranks: WHICH of them."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
import transformer_engine.pytorch as te
from transformer_engine.common import recipe
from transformer_engine.pytorch.optimizers import FusedAdam
from transformer_engine.pytorch.permutation import moe_permute_with_probs, moe_unpermute
from transformer_engine.pytorch.router import fused_topk_with_score_function

SEQ, BATCH, WIDTH, HEADS = 8, 2, 16, 4


class Block(torch.nn.Module):
    """Attention and a layer behind it, in halves; weights add up in ``main_grad``."""

    def __init__(self, *, sequence_parallel: bool) -> None:
        super().__init__()
        options: dict[str, Any] = {
            "tp_group": dist.group.WORLD,
            "sequence_parallel": sequence_parallel,
            "params_dtype": torch.bfloat16,
            "fuse_wgrad_accumulation": True,
        }
        self.qkv = te.LayerNormLinear(
            WIDTH, 3 * WIDTH, normalization="RMSNorm", bias=True, parallel_mode="column", **options
        )
        self.core = te.DotProductAttention(HEADS // 2, WIDTH // HEADS, attn_mask_type="causal")
        self.out = te.Linear(WIDTH, WIDTH, bias=False, parallel_mode="row", **options)
        for parameter in self.parameters():
            parameter.main_grad = torch.zeros_like(parameter, dtype=torch.float32)  # type: ignore[attr-defined]
            parameter.grad_added_to_main_grad = False  # type: ignore[attr-defined]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(sequence, batch, width), the sequence in parts where it is parallel."""
        mixed = self.qkv(x)
        parts = mixed.view(*mixed.shape[:2], HEADS // 2, -1).chunk(3, dim=-1)
        found: torch.Tensor = self.out(self.core(*parts))
        return found


class Experts(torch.nn.Module):
    """Two of four experts for each token; ``narrow``: in fp8, with rows filled up."""

    def __init__(self, *, narrow: bool = False) -> None:
        super().__init__()
        self.narrow = narrow
        self.fill, self.empty = te.Fp8Padding(4), te.Fp8Unpadding(4)
        self.router = te.Linear(WIDTH, 4, bias=False)
        self.experts = te.GroupedLinear(4, WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(tokens, width)."""
        shares, routes = fused_topk_with_score_function(
            self.router(x), 2, False, None, None, None, "softmax", None
        )
        tokens, chosen, places = moe_permute_with_probs(x, shares, routes, 2 * len(x))
        rows = routes.sum(dim=0).tolist()
        padded, filled = self.fill(tokens, rows) if self.narrow else (tokens, rows)
        made = self.experts(padded, filled)
        made = (self.empty(made, rows) if self.narrow else made) * chosen.unsqueeze(-1)
        back: torch.Tensor = moe_unpermute(made, places, restore_shape=x.shape)
        return back


class Ring(torch.nn.Module):
    """Attention over a sequence in parts; two heads of queries for each of keys."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = te.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.core = te.DotProductAttention(
            HEADS,
            WIDTH // HEADS,
            num_gqa_groups=HEADS // 2,
            cp_group=dist.group.WORLD,
            cp_stream=torch.cuda.Stream(),  # type: ignore[no-untyped-call]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(sequence, batch, width)."""
        mixed = self.qkv(x).view(*x.shape[:2], 2 * HEADS, -1)
        found: torch.Tensor = self.core(*mixed.split([HEADS, HEADS // 2, HEADS // 2], dim=2))
        return found


class Core(torch.nn.Module):
    """Attention alone."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = te.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.core = te.DotProductAttention(HEADS, WIDTH // HEADS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(sequence, batch, width)."""
        mixed = self.qkv(x).view(*x.shape[:2], 3 * HEADS, -1)
        found: torch.Tensor = self.core(*mixed.split(HEADS, dim=2))
        return found


def main(which: str) -> None:
    dist.init_process_group("nccl")
    which, _, how = which.partition(" in ")
    kinds = {"experts": lambda: Experts(narrow=bool(how)), "ring": Ring, "attention": Core}
    model = (kinds[which]() if which in kinds else Block(sequence_parallel=which != "tensor parallel")).cuda()
    tokens = (SEQ * BATCH, WIDTH) if which == "experts" else (SEQ // 2, BATCH, WIDTH)
    if which == "tensor parallel":
        tokens = (SEQ, BATCH, WIDTH)
    recipes = {"delayed": recipe.DelayedScaling, "current": recipe.Float8CurrentScaling}
    recipes |= {"mxfp8": recipe.MXFP8BlockScaling, "nvfp4": recipe.NVFP4BlockScaling}
    scaling = recipes.get(how or which)
    options = {"fp8_dpa": True} if which == "attention" else {}
    optimizer = FusedAdam(model.parameters())
    dtype = next(model.parameters()).dtype
    for _ in range(3):
        x = torch.randn(tokens, device="cuda", dtype=dtype, requires_grad=True)
        with te.fp8_autocast(
            scaling is not None, fp8_recipe=scaling and scaling(**options), fp8_group=dist.group.WORLD
        ):
            found = model(x)
        found.sum().backward()
        optimizer.step()


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]))
