"""Writes docs/kernels.md from the patterns that the passes apply; run it after changing them."""

from __future__ import annotations

from pathlib import Path

from simcore.graph.passes.kernels import MAPPINGS
from simcore.graph.passes.patterns import ATTENTION_BACKWARD, ATTENTION_FORWARD, MEGATRON, FusedKernel

PATH = Path(__file__).parents[2] / "docs" / "kernels.md"

_INTRO = """# Kernel mappings

A trace of a framework's plain code shows every aten op. An optimised build launches fewer kernels.
`--set workload.kernels=...` says which build is simulated:

"""

_USUAL = """
Where nothing is said, a Megatron-Core program in 16 bits has the kernels of `cudnn`, as its default layer
spec runs attention in Transformer Engine; in fp32, for which neither cuDNN nor FlashAttention has kernels,
it is `megatron`. Other programs are `unfused`: their traces show what they launch.
"""

_RULES = """
A pattern is a sequence of op names in issue order on one stream, in one phase and one layer, nothing between
them: `a|b` is either, `a?` optional, `a*` any number, `a+` at least one. The fused kernel reads each distinct
tensor from outside once and writes each tensor that outlives it once; what only its own ops touched costs
neither traffic nor memory. Flops are the sum of its ops'. Ops that match nothing stay as they are.

Under `cudnn` the attention kernels are called `cudnn_attention_fwd` and `cudnn_attention_bwd`, and priced so;
in fp32 they are `efficient_attention_*` under both names.

Besides the table: a weight-gradient GEMM and the addition into `main_grad` that follows it run as one
`wgrad_gemm_accum` (`gradient_accumulation_fusion`), on the GEMM's flops.

This page is written by `tests/graph/kernel_docs.py` from the patterns themselves.
"""


def page() -> str:
    """The whole page."""
    names = "".join(f"- `{name}`: {text}\n" for name, text in MAPPINGS.items())
    flash = _table("Only in `flash` and `cudnn`", (ATTENTION_FORWARD, ATTENTION_BACKWARD))
    return _INTRO + names + _USUAL + _table("In `megatron`, `flash` and `cudnn`", MEGATRON) + flash + _RULES


def _table(title: str, kernels: tuple[FusedKernel, ...]) -> str:
    rows = ""
    for kernel in kernels:
        pattern = kernel.pattern.replace("|", "\\|")
        rows += f"| `{kernel.name}` | {', '.join(kernel.phases)} | `{pattern}` | {kernel.source} |\n"
    return f"\n## {title}\n\n| kernel | phase | ops | stands for |\n|---|---|---|---|\n{rows}"


if __name__ == "__main__":
    PATH.write_text(page(), encoding="utf-8")
