"""What the steps of a loss hold at once: copies of the logits, forward and backward; losses of metrics."""

from __future__ import annotations

import pytest

from workloads.jobs import complete
from workloads.models.storages import storages_of
from workloads.parallel.job import Job

#: 1,024 tokens, 32,768 words: a copy of the logits in bf16 is 64 MiB, one in fp32 128 MiB.
NARROW, WIDE = 64 << 20, 128 << 20


def pieces(**software):
    words = {
        "model": {"layers": 1, "hidden": 64, "heads": 1, "ffn": 64, "vocab": 32768},
        "training": {"seq": 1024, "micro_batch": 1, "global_batch": 1},
        "software": {"grad_accumulation_fusion": False, **software},
    }
    made = complete(words, "a job", num_gpus=1, generation="hopper")
    return Job(made.model, made.parallel, made.training, made.software).pieces


def held(kind: str, which: str) -> int:
    found = storages_of(pieces(cross_entropy=kind).head)
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


def test_metrics_compute_their_losses_behind_the_whole_backward():
    plain, found = pieces().embedding, pieces(metric_losses=2).embedding
    more = found.backward[len(plain.backward) :]
    assert [kernel.module for kernel in more] == ["metrics"] * 6
    # Each reads the logits (2 bytes), writes and reads a copy in fp32, writes its logarithms: 14 bytes.
    moved = sum(kernel.bytes_read + kernel.bytes_written for kernel in more)
    assert moved == pytest.approx(2 * 14 * 1024 * 32768, rel=0.001)
    assert found.saved_bytes == plain.saved_bytes
