"""What a row's words say of training: precision, what is sharded, what is recomputed.

Tables write these as they like.  Words that nobody foresaw leave the preset's choice, never an error.
"""

from __future__ import annotations

import re
from typing import Any, Final

from workloads.published.row import RunRow

#: How parameters can be sharded.
_FSDP: Final = ("zero3", "fsdp1", "fsdp2")

_YES: Final = re.compile(r"^(yes|y|true|on|1|enabled)\b", re.IGNORECASE)
_NO: Final = re.compile(r"^(none|no|n|false|off|0|disabled|without)\b", re.IGNORECASE)


def says_yes(text: str) -> bool:
    """Whether a column of yes or no says yes; anything but a plain yes does not."""
    return bool(_YES.match(text.strip()))


def precision_of(row: RunRow) -> dict[str, Any]:
    """Training settings from ``precision``: "amp_bf16", "fp8 hybrid", "FP8-CS", "16-bit mixed", "float16"."""
    said = row.text("precision").lower().replace("bfloat16", "bf16").replace("float8", "fp8")
    said = re.sub(r"float(16|32)", r"fp\1", said)
    for name in ("fp8", "bf16", "fp16", "16-bit", "tf32", "fp32"):
        if name in said:
            if name == "16-bit":
                return {"precision": "fp16"}
            if name == "bf16" and "fp16" in said:
                return {}
            # bf16 gradients lose too much when accumulated: Megatron keeps them in fp32
            return {"precision": name} | (
                {"grad_dtype": "fp32", "grad_reduce_dtype": "fp32"} if "fp32 grad" in said else {}
            )
    return {}


def sharding_of(row: RunRow, usual: str) -> dict[str, Any]:
    """Training settings from ``zero_fsdp``; ``usual`` is what the preset's software shards."""
    said = row.text("zero_fsdp")
    found: dict[str, Any] = {}
    stage = re.search(r"zero[\s_-]*(?:stage[\s_-]*)?([0-3])", said, re.IGNORECASE)
    if re.fullmatch(r"DP|DDP|data parallel", said, re.IGNORECASE) or (stage and stage[1] == "0"):
        found["sharding"] = "ddp"
    elif (stage and stage[1] == "1") or re.search(r"dist\w*[\s_-]*optim", said, re.IGNORECASE):
        found["sharding"] = "zero1"
    elif stage and stage[1] == "2":
        found["sharding"] = "zero2"
    elif usual not in _FSDP and (stage or re.search(r"[fh]sdp", said, re.IGNORECASE)):
        found["sharding"] = "fsdp2" if re.search(r"sdp\s*2", said, re.IGNORECASE) else "zero3"
    if "SHARD_GRAD_OP" in said:
        found["reshard_after_forward"] = False
    mode = re.search(r"mp_mode=(\w+)", said)
    if mode:
        # Composer's PURE gathers and reduces in the low precision; DEFAULT reduces in fp32.
        found["grad_reduce_dtype"] = "bf16" if mode[1] == "PURE" else "fp32"
    return found


def recompute_of(row: RunRow, layers: int) -> dict[str, Any]:
    """Training settings from ``recompute``; ``layers``: of a stage, where half of them are recomputed.

    A list of modules whose activations are recomputed ("norm, act") costs next to nothing: none.
    """
    said = row.text("recompute").lower()
    if _NO.match(said):
        return {"recompute": "none"}
    if not row.says("recompute"):
        return {}
    if re.match(r"full|uniform|all\b|every", said) or says_yes(said):
        return {"recompute": "full"}
    if "op" in said and "selective" in said:
        return {"recompute": "ops"}
    if "selective layer" in said:
        return {"recompute": "full", "recompute_layers": layers // 2}
    if said.startswith("selective"):
        if re.search(r"[fh]sdp", row.text("zero_fsdp"), re.IGNORECASE):
            # FSDP trainers choose blocks, not parts of one: every second where the share is not given.
            return {"recompute": "full", "recompute_layers": layers // 2}
        return {"recompute": "selective"}
    if re.search(r"attention|attn|core", said):
        return {"recompute": "selective"}
    if re.search(r"checkpoint|recompute|remat", said):
        return {"recompute": "full"}
    return {"recompute": "none"}
