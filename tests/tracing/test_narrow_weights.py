"""Weights of fewer than 16 bits: what they hold, what turns them back, what is multiplied."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

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
