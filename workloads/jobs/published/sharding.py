"""What a row's words say of how data-parallel ranks share parameters, gradients and optimizer states.

Words that nobody foresaw leave the preset's choice.
"""

from __future__ import annotations

import re
from typing import Any, Final

from simcore.errors import InputError
from workloads.jobs.published.row import RunRow
from workloads.parallel.spec import FSDP

_STAGE: Final = r"zero[\s_-]*(?:stage[\s_-]*)?"

#: What is said for each kind but those of full sharding, in the order in which they are looked for.
_KINDS: Final = (
    ("ddp", rf"^(d?dp|data[\s-]parallel\w*)$|no_shard|{_STAGE}0|^(none|no|off|false|disabled)\b(?! stated)"),
    ("zero1", rf"{_STAGE}1|dist\w*[\s_-]*opt|shard\w*[\s_-]*optim|optim\w*[\s_-]*(state\w*[\s_-]*)?shard"),
    ("zero2", rf"{_STAGE}2"),
)

#: Full and hybrid sharding, by PyTorch's names and DeepSpeed's.
_TORCH: Final = rf"[fh]sdp|full_?shard|hybrid[\s_-]?shard|fully_shard|shard_grad_op|dp_shard|{_STAGE}3"

#: Ranks of a node, over which hybrid sharding shards unless told otherwise (torch init_device_mesh examples,
#: Composer's and fms-fsdp's HYBRID_SHARD).
_NODE: Final = 8


def sharding_of(row: RunRow, usual: str) -> dict[str, Any]:
    """Training settings from ``zero_fsdp``; ``usual`` is what the preset's software shards.

    Errors: InputError for states that are kept in host memory or on disks.
    """
    said = row.text("zero_fsdp")
    if _finds(r"offload|zero-?infinity", said) and not _finds(
        r"no[\s-]+offload|offload\w* (off|none|false)", said
    ):
        raise InputError(f"{row.id}: zero_fsdp {said!r}: states outside the GPU are not modelled")
    found: dict[str, Any] = {}
    kind = next((name for name, pattern in _KINDS if _finds(pattern, said)), "")
    if kind:
        found["sharding"] = kind
    elif usual not in FSDP and _finds(_TORCH, said):
        found["sharding"] = "fsdp2" if _finds(r"sdp\s*2|fully_shard|dp_shard", said) else "zero3"
    if kind in ("zero1", "zero2") and usual in FSDP and _finds("[fh]sdp", said):
        # "FSDP (ZeRO-2 style)": parameters are sharded, but not again behind each forward.
        found["sharding"] = usual
    if found.get("sharding", usual) in FSDP:
        choices = resharding(f"{said} {row.text('notes')}", pipeline=row.count("pp", 1) > 1)
        if len(choices) == 1 and choices[0] is not None:
            found["reshard_after_forward"] = choices[0]
    mode = re.search(r"mp_mode=(\w+)", said)
    if mode:
        # Composer's PURE gathers and reduces in the low precision; DEFAULT reduces in fp32.
        found["grad_reduce_dtype"] = "bf16" if mode[1] == "PURE" else "fp32"
    return found


def resharding(said: str, *, pipeline: bool) -> tuple[bool | None, ...]:
    """Whether FSDP gives up gathered parameters behind each forward: what is plausible, the likely first.

    ``said``: a run's words on sharding.  One value where they settle it.  Where they do not, (None,), the
    software's own choice, without a pipeline; with one both are done: torchtitan and Llama 3 (arXiv
    2407.21783, section 3.3.2) gather once a step, as a gather for each microbatch could not be hidden, while
    FSDP left to itself, or ZeRO-3, gathers for each microbatch, forward and backward.
    """
    if _finds(r"shard_grad_op|no(t|n)?[\s-]+re-?shard|without re-?shard|zero[\s_-]*(1/2|[12])\b", said):
        return (False,)
    if _finds(rf"full_?shard|{_STAGE}3|re-?shards? after|reshard_after_forward[\s=:]*true", said):
        return (True,)
    return (False, True) if pipeline else (None,)


def shard_ranks(row: RunRow, dp: int) -> int:
    """Ranks over which parameters are sharded, 0: all ``dp`` of them.

    "FSDP 64 + DP", "FSDP2 8", "HSDP" (a node), "HSDP 4x16" (replicas x shards), "dp_shard 32".
    """
    said = row.text("zero_fsdp")
    pair = re.search(r"(?:HSDP|hybrid)\D*(\d+)\s*x\s*(\d+)", said, re.IGNORECASE)
    named = re.search(
        r"shard(?:s|ed|ing)?(?:[\s_-](?:size|degree|group|over))?\s*[=:]?\s*(\d+)", said, re.IGNORECASE
    )
    plain = re.search(r"F?SDP2?\s+(\d+)", said)
    if pair and int(pair[1]) * int(pair[2]) == dp:
        ranks = int(pair[2])
    elif found := named or plain:
        ranks = int(found[1])
    elif re.search(r"HSDP|hybrid", said, re.IGNORECASE):
        ranks = _NODE
    else:
        return 0
    return ranks if 0 < ranks < dp and dp % ranks == 0 else 0


def _finds(pattern: str, text: str) -> bool:
    return re.search(pattern, text, re.IGNORECASE) is not None
