"""Recurrent layers: inputs of all steps at once, then step by step, as cuDNN runs them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.tracing.small_jobs import rows
from tests.tracing.test_habits import flops, trace
from workloads.tracing.drive.fork_server import WorkerPool

STEPS, BATCH, WIDTH, UNITS = 28, 16, 32, 64


def test_a_step_of_an_lstm_is_a_product_and_a_pointwise_kernel(pool: WorkerPool, tmp_path: Path) -> None:
    # The script itself asserts that shapes of results and gradients are those that real layers give on a CPU.
    found = trace(pool, "", tmp_path, script="recurrent")[1]
    launched = Counter((name, phase) for name, phase in rows(found, "name", "phase"))
    for phase, products in (("fwd", 2 * (STEPS + 1)), ("bwd", 2 * (STEPS + 2) + 1)):
        assert launched[f"cudnn::lstm_pointwise_{phase}", phase] == 2 * STEPS
        assert launched["aten::mm", phase] == products  # all inputs, or weights' gradients, at once
    tokens = STEPS * BATCH
    layers = [4 * UNITS * (WIDTH + UNITS), 4 * UNITS * 2 * UNITS]
    assert flops(found, "fwd") == 2 * tokens * sum(layers)
    assert flops(found, "bwd") == 2 * tokens * (
        2 * sum(layers) - 4 * UNITS * WIDTH
    )  # no gradient of the input
