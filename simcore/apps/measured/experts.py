"""A layer of experts as inference engines time it: the kernels that one rank runs one after the other."""

from __future__ import annotations

import re
from typing import Final

from simcore.cost.kernel import KernelShape
from simcore.errors import InputError

#: What the notes of a row say of the layer, and of the engine whose kernels ran.
_SAID: Final = re.compile(r"\b(topk|experts|ep|tp|distribution)=([\w.]+)")
_ENGINE: Final = re.compile(r"distribution=[\w.]+; (\w+)")


def engine_of(notes: str) -> str:
    """Whose kernels ran, as the notes call them; "" where they do not say."""
    found = _ENGINE.search(notes)
    return found[1] if found else ""


def expert_layer(
    tokens: int, ffn: int, hidden: int, experts: int, dtype: str, notes: str
) -> tuple[KernelShape, ...]:
    """Routing, permutation, products, activation and combination of ``experts`` on one rank.

    ``tokens``: that the router sees, of which the rank has ``topk / ep`` each; ``ffn``: columns of its slice.
    ``notes``: ``topk``, ``ep`` and the distribution of tokens; "non-gated" layers have two products, others
    three in two kernels.  Errors: InputError where tokens are not spread evenly, as nothing says how many an
    expert has.
    """
    said = dict(_SAID.findall(notes))
    if said.get("distribution") != "balanced":
        raise InputError(
            f"tokens of experts spread by {said.get('distribution', 'nothing said')!r} are not counted"
        )
    pairs = max(1, tokens * int(said["topk"]) // int(said["ep"]))
    busy = min(experts, pairs)
    rows = -(-pairs // busy)
    both = ffn if "non-gated" in notes else 2 * ffn
    name = "blockwise_experts_gemm" if "deepgemm" in notes else "experts_gemm"

    def moved(op: str, read: int, written: int) -> KernelShape:
        return KernelShape(
            op, "elementwise", "bfloat16", (), (), bytes_read=2 * read, bytes_written=2 * written
        )

    def product(depth: int, width: int) -> KernelShape:
        shapes = ((busy, rows, depth), (busy, depth, width))
        flops = 2 * busy * rows * depth * width
        return KernelShape(name, "bgemm", dtype, shapes, ((busy, rows, width),), flops=flops, replayed=True)

    narrow = dtype != "bfloat16"
    return (
        moved("topk", tokens * int(said["experts"]), tokens * int(said["topk"])),
        moved("permute", pairs * hidden, pairs * hidden),
        *([moved("quantise", pairs * hidden, pairs * hidden // 2)] if narrow else []),
        product(hidden, both),
        moved("activation", pairs * both, pairs * ffn),
        product(ffn, hidden),
        moved("combine", pairs * hidden, tokens * hidden),
    )
