"""What was looked for behind misses that no piece of physics explains yet, and what it was worth."""

from __future__ import annotations

from typing import Final

from simcore.calibrate.runs_page.tables import table

#: (rows, what was tried, what it was worth in points of error).  Each measured once, when it was tried.
_TRIED: Final = (
    (
        "MegaScale-MoE's baseline, -31% at first",
        "PyTorch's kernels by index for tokens; a band that reaches micro batch 1 with full recomputation",
        "+14 and +6; the paper's own tensor-parallel variant without overlap (27.7 s at 240 GPUs, table 5)"
        " lies within the band, its Megatron-LM (39.9 s) does not",
    ),
    (
        "Megatron-MoE-ModelZoo, Qwen3-235B with tp 4, -18%",
        "routing as uneven as its long-context table implies (fullest rank 1.7 times the mean)",
        "+1 there, where the host decides, and +35 to +45 on the two rows that fit: balance was forced",
    ),
    (
        "Megatron-Bridge, Qwen3-30B with DeepEP, -9%, and with all_to_all, +7%",
        "the host's time for experts, nine tenths of the step",
        "one constant cannot fit both, and no source gives two",
    ),
    (
        "Grok-1 in fp8, -6% (bf16 +2.5%)",
        "FlashAttention-2 as its recipe sets it, kernels by index, clocks by number of GPUs",
        "+4 together; about 1.5 ms a layer and microbatch are left that bf16 does not have, and the same"
        " ratio of fp8 to bf16 (1.27, here 1.36) is published for Mixtral 8x22B (arXiv 2504.14960, table 2)",
    ),
    (
        "Megatron-Bridge, Llama-3 70B in fp8, +7%",
        "sums of tensor parallelism by copies; maxima found by the kernels before (TransformerEngine 2.7);"
        " attention of 2026 (685 Tflop/s forward)",
        "-2, below -0.5, -2; the stage with the head sets the pace",
    ),
    (
        "MegaScale's dense baseline, -2 to -13%",
        "the slowest of its GPUs",
        "+2; what is left is 1.2 to 1.8 s a step, whatever the number of microbatches",
    ),
    (
        "MosaicML on A100, +1% at 8 GPUs to -6% at 128",
        "the slowest of its GPUs",
        "2 of the 7 points",
    ),
)


def tried_lines() -> list[str]:
    """The section."""
    heads = ("rows", "tried", "worth, points of error")
    return ["## What was tried on misses", "", *table(heads, _TRIED)]
