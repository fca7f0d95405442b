"""Selective recomputation of single modules: those whose forward runs again before their own backward.

Names and contents as megatron/core/transformer/transformer_config.py has them (recompute_modules); with
"mla_up_proj" positions and the assembly of keys run again, too (multi_latent_attention.py).  What the next
product reads of a module that runs again counts as kept unless ``frees`` says otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Final, Literal

from workloads.models.op_tape import OpTape

RecomputeModule = Literal["core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts"]

#: Kernels' modules that a name stands for; "mlp" of dense layers, "moe" of those with experts.
_PATTERNS: Final[Mapping[RecomputeModule, str]] = {
    "core_attn": r"\.core_attention$",
    "layernorm": r"\.(input|pre_mlp)_layernorm$",
    "mla_up_proj": r"\.(linear_q_up_proj|linear_kv_up_proj|q_layernorm|kv_layernorm|self_attention)$",
    "mlp": r"\.mlp\b",
    "moe": r"\.mlp\b",
    "moe_act": r"\.experts$",
    "shared_experts": r"\.shared_experts\b",
}


def mark_recomputed(
    tape: OpTape, modules: Collection[RecomputeModule], *, sparse: bool, frees: bool = False
) -> None:
    """Let ops of ``modules``, and no others, run again; none given: as marked already (core attention).

    ``sparse``: the layer has experts.  ``frees``: what runs again leaves nothing for what comes next.
    """
    if not modules:
        return
    other = "mlp" if sparse else "moe"
    wanted = re.compile("|".join(_PATTERNS[name] for name in modules if name != other) or r"$^")
    for op in tape.ops:
        op.again = bool(op.forward) and bool(wanted.search(tape.forward[op.forward[0]].kernel.module))
    ran = [op for op in tape.ops if op.forward] if frees else []
    for before, op in pairwise(ran):
        if before.again and not op.again and op.reads < 0:
            for k in op.forward:
                tape.forward[k] = replace(tape.forward[k], saved_inputs=0)
