"""What forward keeps, in the host's memory until its backward.

Note [Offloading]
    Behind a piece's forward a copy engine moves what it keeps to the host, over PCIe or NVLink-C2C, beside
    what is computed next; the copy back begins with the backward of the piece before, and the piece's own
    backward waits for it (Transformer Engine's cpu_offload.py, which --cpu-offloading-num-layers and
    --fine-grained-activation-offloading of Megatron-Core use).  What two ops keep goes twice, and comes back
    as two tensors (``tensor_push`` of fine_grained_activation_offload.py): the probabilities of attention in
    several kernels, which the softmax and its product with the values keep, unless dropout is between them.

Note [A layer's share]
    One layer's share is on the GPU as long as a backward is ahead.  The last layer of the forward whose
    backward is next stays (``post_warmup_callback`` and ``should_bulk_offload`` of
    fine_grained_activation_offload.py: the last group of each name does); as each of its modules is done in
    backward, the same module of the layer before comes back (``on_group_start_backward``), and behind a
    chunk's first layer that of the last one of the chunk whose backward is next, if its forward is done
    (``pre_reload_last_layer``): it waits there through the forward between them.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache
from typing import Final, Literal

from workloads.models.pieces import (
    OFFLOAD,
    OFFLOAD_STREAM,
    RELOAD,
    RELOAD_STREAM,
    KernelLaunch,
    ModelPiece,
)

#: Parts of a layer, as Megatron-Core's ``offload_modules`` calls them; "layer": all that it keeps.
OffloadModule = Literal[
    "layer", "attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act"
]

#: Those that layers with experts alone have.
OF_EXPERTS: Final[tuple[OffloadModule, ...]] = ("expert_fc1", "moe_act")

_PATTERNS: Final[dict[OffloadModule, str]] = {
    "layer": r"",
    "attn_norm": r"\.input_layernorm$",
    "qkv_linear": r"\.linear_(qkv|q|k|v|kv)$",
    "core_attn": r"\.core_attention$",
    "attn_proj": r"\.linear_proj$",
    "mlp_norm": r"\.pre_mlp_layernorm$",
    "expert_fc1": r"\.experts\.linear_fc1$",
    "moe_act": r"\.experts$",
}


def offloaded(piece: ModelPiece, modules: Collection[OffloadModule]) -> ModelPiece:
    """``piece`` with what launches of ``modules`` keep moved to the host; see Note [Offloading]."""
    if not piece.backward:
        return piece
    wanted = re.compile("|".join(_PATTERNS[name] for name in modules))
    origins, kept, moved, again = piece.origins, list(piece.origins.kept), 0, 0
    dropout = any("core_attention" in one.module and "dropout" in one.name for one in piece.forward)
    for k, kernel in enumerate(piece.forward):
        if kept[k] != (0, 0) and wanted.search(kernel.module):
            moved += sum(kept[k])
            if "softmax" in kernel.name and "core_attention" in kernel.module and not dropout:
                again += kept[k][1]
            kept[k] = (0, 0)
    if not moved:
        return piece
    copied = moved + again
    there = KernelLaunch(OFFLOAD, op_class="copy", bytes_read=copied, stream=OFFLOAD_STREAM)
    back = KernelLaunch(RELOAD, op_class="copy", bytes_read=copied, stream=RELOAD_STREAM)
    shifted = [replace(k, waits_for=tuple(wait + 1 for wait in k.waits_for)) for k in piece.backward]
    last = origins.forward[-1]
    return replace(
        piece,
        forward=(*piece.forward, there),
        backward=(back, *shifted),
        saved_bytes=piece.saved_bytes - moved,
        origins=replace(
            origins,
            forward=(*origins.forward, last),
            backward=((last, -1), *origins.backward),
            needed=(*origins.needed, (0, 0)),
            kept=(*kept, (0, 0)),
        ),
    )


@lru_cache(maxsize=256)
def share_bytes(piece: ModelPiece) -> int:
    """Of a layer's share, as it comes back (0: nothing leaves); see Note [A layer's share]."""
    return sum(kernel.bytes_read for kernel in piece.backward if kernel.name == RELOAD)
