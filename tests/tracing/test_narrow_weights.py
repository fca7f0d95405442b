"""Weights of fewer than 16 bits: what they hold, what turns them back, what is multiplied."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.tracing.small_jobs import rows
from tests.tracing.test_habits import communication, flops, trace
from workloads.tracing.drive.fork_server import WorkerPool


def test_frozen_weights_of_four_bits_are_turned_back_for_each_product(
    pool: WorkerPool, tmp_path: Path
) -> None:
    found = trace(pool, "four_bits", tmp_path, script="narrow_weights")[1]
    weight, adapters, between = 256 * 1024, 8 * (256 + 1024), 1024 * 256
    assert found.memory.parameters == 2 * weight // 2 + 2 * (2 * adapters + between)
    turned = Counter(
        row for row in rows(found, "name", "phase", "bytes_read", "bytes_written") if "dequantize" in row[0]
    )
    # Half a byte and a 64th of a scale in 32 bits for each weight; the first layer's input has no gradient.
    four, scales = "bitsandbytes::dequantize_4bit", weight // 64
    assert {key: count for key, count in turned.items() if key[0] == four} == {
        (four, "fwd", weight // 2 + 4 * scales, 2 * weight): 2,
        (four, "bwd", weight // 2 + 4 * scales, 2 * weight): 1,
    }
    # The first layer's scales have 8 bits, in blocks of 256 by a table of 256 numbers.
    assert [key[1:] for key in turned if key[0] != four] == [
        ("fwd", scales + 4 * (scales // 256 + 256), 4 * scales)
    ]
    tokens = 512
    assert flops(found, "fwd") == 2 * tokens * (2 * weight + between + 2 * adapters)
    # Back: gradients of adapters' weights and of all inputs but the first layer's.
    inputs = weight + between + 8 * 1024 + adapters
    assert flops(found, "bwd") == 2 * tokens * (inputs + 2 * adapters)
    assert communication(found, "grad_sync", "all_reduce", "world") == 2 * 2 * adapters


def test_a_tensor_that_wraps_others_holds_what_they_do(pool: WorkerPool, tmp_path: Path) -> None:
    found = trace(pool, "wrapped", tmp_path, script="narrow_weights")[1]
    assert found.memory.parameters == 32 * 16 + 4 + 4 * 32 * 4
    assert flops(found, "fwd") == 2 * 8 * (16 * 32 + 32 * 4)


@pytest.mark.parametrize("recipe", ["delayed", "tensorwise", "blockwise", "mxfp8"])
def test_parameters_in_fp8_are_gathered_and_held_in_eight_bits(
    pool: WorkerPool, tmp_path: Path, recipe: str
) -> None:
    pytest.importorskip("megatron.core")
    found = trace(pool, f"parameters-{recipe}", tmp_path, script="megatron_layers")[1]
    # Two layers: heads' products in and out, twice and once a width of 2,048; embeddings and norms stay wide.
    narrow = 2 * 512 * (3 * 512 + 512 + 3 * 2048)
    wide = 2 * 2048 * 512 + 5 * 512
    assert found.memory.parameters == narrow + 2 * wide
    calls = rows(found, "name", "phase", "collective", "num_bytes")
    gathered = sum(size for _, phase, what, size in calls if (phase, what) == ("optimizer", "all_gather"))
    # Those by 32 elements gather 16 bits and cast them where they arrive.
    assert gathered == (2 if recipe == "mxfp8" else 1) * narrow + 2 * wide
    made = Counter(name for name, phase, *_ in calls if phase == "optimizer")
    assert made["transpose_fp8"] == (0 if recipe == "mxfp8" else 8)
    # Inputs of four products a layer and microbatch are cast forward, and no weight.
    casts = sum("cast_transpose" in name and phase == "fwd" for name, phase, *_ in calls)
    assert casts == 2 * 2 * 4 or recipe == "mxfp8"
