"""What was looked for behind misses that no piece of physics explains yet, and what it was worth."""

from __future__ import annotations

from typing import Final

from simcore.apps.validate.runs.page.tables import table

#: (rows, what was tried, what it was worth in points of error).  Each measured once, when it was tried.
_TRIED: Final = (
    (
        "MegaScale-MoE's baseline, -31% at first",
        "PyTorch's kernels by index for tokens; a band that reaches micro batch 1 with full recomputation",
        "+14 and +6; the paper's own tensor-parallel variant without overlap (27.7 s at 240 GPUs, table 5)"
        " lies within the band, its Megatron-LM (39.9 s) does not",
    ),
    (
        "Megatron-MoE-ModelZoo, Qwen3-235B with tp 4, -16%",
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
    (
        "torchtitan, Llama-3 8B with cp 4 and 8, -27 and -30% at first",
        "context parallelism as PyTorch does it (4 times the keys of grouped heads, exchanges exposed by"
        " torch.compile, merges in fp32), which takes table 6 of the same source (405B, tp 8, pp 8, cp 2, 4,"
        " 8; not among these rows) from -20, -20, -30 to -3, +3, -8",
        "+1.5 and +1; about 70 ms a piece and layer are left, which cp 2 with the same pieces does not show",
    ),
    (
        "torchtitan's 500 W boards",
        "the lower clock for attention, too, not for products alone",
        "the mean error of its 16 H100 rows falls from 7.1 to 5.2%, that of tables 5 and 6, which are not"
        " among them, grows from 6.7 to 8.0%: not adopted",
    ),
    (
        "FMS before torch.compile, -7 to -13%",
        "rotation by 2 x 2 matrices in fp32, AdamW pass by pass",
        "+1 and +2; -5 to -12 are left",
    ),
    (
        "MosaicML on H100, -15 to +3%",
        "Composer's optimizer, tensor by tensor and pass by pass; a clock of its own",
        "+0.3; 0.765 of the rated one, while its A100 rows agree with all others' clock: products of early"
        " cuBLAS on Hopper (github.com/pytorch/pytorch issue 100850) have no table to be fitted to here",
    ),
    (
        "Megatron-MoE-ModelZoo, Qwen3-235B with pp 32 and 512 microbatches, -28% at first",
        "flags of the day of its table (May 2025): tensor parallelism exposed, neither router nor loss fused;"
        " no host time at all; 4.5 ms of the host a layer instead of 3",
        "+13 (the stage with the loss sets the pace), +2 with tp 4, +3 to +4 on the two rows that fitted, and"
        " all four in their order; before that, 1 and +7",
    ),
    (
        "torchtitan with a scale for each row of fp8, -28 to -34% at first",
        "each product casts its operands itself, columns at a third of the rate of rows, gathers in 16 bits",
        "+16 to +20; casts of what comes from a fused norm, published as eight times a plain one, are not in",
    ),
    (
        "GPT-OSS on Megatron-Bridge, -16 to -27% at first",
        "its recipe's recomputation; clamps, sums of biases' gradients and waits that nothing fuses",
        "+12 to +15; about 1.9 ms a layer are left at micro batch 1, which look like the host",
    ),
    (
        "MPT-30B with 8,192 tokens on one node of H100, -23%",
        "nothing that its sources name",
        "its states take 56 of 80 GB: memory under pressure is suspected, and not modelled",
    ),
)


def tried_lines() -> list[str]:
    """The section."""
    heads = ("rows", "tried", "worth, points of error")
    note = "Each was measured once, on a sample, when it was tried (November 2026); these figures are not"
    lines = ["## What was tried on misses", "", f"{note} computed anew with this page."]
    return [*lines, "", *table(heads, _TRIED)]
