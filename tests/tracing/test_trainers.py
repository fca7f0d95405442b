"""What trainers of language models do that plain loops do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tracing.small_jobs import rows
from tests.tracing.test_habits import flops, names, trace
from workloads.tracing.drive.fork_server import WorkerPool


def test_a_weight_of_eight_bits_multiplies_whole_numbers(pool: WorkerPool, tmp_path: Path) -> None:
    (found,) = trace(pool, "eighth", tmp_path, script="trainers").values()
    adapter, base = 2 * 32 * 64 * 64, 2 * 32 * 64 * 128
    assert (flops(found, "fwd"), flops(found, "bwd")) == (adapter + base, adapter + base)
    order = [
        name
        for name in names(found)
        if name in ("bitsandbytes::int8_vectorwise_quant", "aten::_int_mm", "bitsandbytes::int8_mm_dequant")
    ]
    assert order == ["bitsandbytes::int8_vectorwise_quant", "aten::_int_mm", "bitsandbytes::int8_mm_dequant"]
    assert [asked.kind for asked, _ in found.asked] == [
        "item"
    ]  # whether an input has columns too large for it


def test_a_table_of_embeddings_keeps_states_of_32_bits(pool: WorkerPool, tmp_path: Path) -> None:
    (found,) = trace(pool, "overridden", tmp_path, script="trainers").values()
    table, matrix = 128 * 64, 64 * 64  # a scale of 32 bits for 256 numbers of 8
    assert found.memory.optimizer_states == 2 * (4 * table + matrix + 4 * matrix // 256)
    kernels = [name for name in names(found) if name.startswith("kOptimizer")]
    assert kernels == ["kOptimizer32bit2State", "kOptimizerStatic8bit2StateBlockwise"]


def test_an_optimizer_that_a_trainer_compiles(pool: WorkerPool, tmp_path: Path) -> None:
    (found,) = trace(pool, "fused", tmp_path, script="trainers").values()
    calls = [
        row for row in rows(found, "name", "bytes_read", "bytes_written") if row[2] > 0 and row[1] >= 3 * 64
    ]
    held = 4 * 4 * 4  # of a matrix in fp32; the other reads a flag of 4 bytes, too
    assert ("multi_tensor_adam", 4 * held, 3 * held) in calls
    assert ("of_a_trainer::gathered", 4 + 3 * held, held) in calls
    said = {asked.rule for asked, _ in found.asked if asked.kind == "missing"}
    assert any("of_a_trainer::HostAdam::step does to tensors of the host" in one for one in said)


@pytest.mark.parametrize("habit", ["lazy", "samples", "messages", "resumable"])
def test_steps_are_whole(habit: str, pool: WorkerPool, tmp_path: Path) -> None:
    for found in trace(pool, habit, tmp_path, script="trainers").values():
        batch = 4 if habit == "samples" else 2
        assert flops(found) == 2 * (2 * batch * 4 * 4)  # forward, and the weight's gradient
        assert not [asked for asked, _ in found.asked]


def test_gathered_sequences_give_their_gradients_back(pool: WorkerPool, tmp_path: Path) -> None:
    (found,) = trace(pool, "shared", tmp_path, script="trainers").values()
    calls = [row for row in rows(found, "collective", "phase", "num_bytes") if row[0]]
    assert flops(found) == 2 * (2 * 2 * 4 * 4)
    assert calls == [("all_gather", "fwd", 2 * 2 * 4 * 4), ("reduce_scatter", "bwd", 2 * 2 * 4 * 4)]


def test_a_new_token_attends_to_what_its_cache_holds(pool: WorkerPool, tmp_path: Path) -> None:
    (found,) = trace(pool, "decoded", tmp_path, script="trainers").values()
    (call,) = [row for row in rows(found, "name", "flops", "bytes_read") if row[0].startswith("flash")]
    keys, query = 5 + 3 + 2, 2 * 4 * 64  # two sequences, and their new tokens; 4 heads of queries, 2 of keys
    assert call[1:] == (4 * keys * 4 * 64, 4 * (2 * keys * 2 * 64 + query))
