"""What the steps of a loss hold at once: copies of the logits, forward and backward."""

from __future__ import annotations

import pytest

from workloads.jobs import complete
from workloads.models.storages import storages_of
from workloads.parallel.job import Job

#: 1,024 tokens, 32,768 words: a copy of the logits in bf16 is 64 MiB, one in fp32 128 MiB.
NARROW, WIDE = 64 << 20, 128 << 20


def held(kind: str, which: str) -> int:
    words = {
        "model": {"layers": 1, "hidden": 64, "heads": 1, "ffn": 64, "vocab": 32768},
        "training": {"seq": 1024, "micro_batch": 1, "global_batch": 1},
        "software": {"cross_entropy": kind, "grad_accumulation_fusion": False},
    }
    made = complete(words, "a job", num_gpus=1, generation="hopper")
    piece = Job(made.model, made.parallel, made.training, made.software).pieces.head
    found = storages_of(piece)
    level = most = sum(one.num_bytes for one in found.storages if one.kept) if which == "B" else 0
    for code in found.events[which]:
        level += found.storages[code].num_bytes if code >= 0 else -found.storages[~code].num_bytes
        most = max(most, level)
    return most


@pytest.mark.parametrize(
    ("kind", "forward", "backward"),
    [
        # In place: the logits and their copy; its gradient is written over it, then narrowed.
        ("in_place", NARROW + WIDE, WIDE + NARROW),
        # Fused steps write a copy each; the logits stay until the loss is there.
        ("jit", NARROW + 2 * WIDE, WIDE + NARROW),
        # PyTorch's: copy, logarithms, then both gradients and the narrow one.
        ("unfused", NARROW + 2 * WIDE, 3 * WIDE),
        ("fused", NARROW, 2 * NARROW),
    ],
)
def test_copies_of_the_logits(kind, forward, backward):
    # Beside them are vectors of 1,024 tokens and hidden states of 64: less than 2 MiB.
    assert forward <= held(kind, "F") < forward + (2 << 20)
    assert backward <= held(kind, "B") < backward + (2 << 20)
