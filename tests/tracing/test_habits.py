"""What programs do on their way: moves of parameters, loss scales, loaders, meshes, stores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tracing.small_jobs import column
from workloads.tracing.drive.fork_server import WorkerPool
from workloads.tracing.drive.rounds import Rounds, workers
from workloads.tracing.drive.script_job import ScriptJob

COLUMNS = ("name", "op_class", "flops", "bytes_read", "bytes_written")
SCRIPT = Path(__file__).parent / "scripts" / "habits.py"


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    """One worker for every script."""
    pytest.importorskip("torch")
    with workers(1) as running:
        yield running


def trace(pool: WorkerPool, habit: str, mail: Path, rank: int = 1) -> Any:
    """The RankTrace of one rank of two, and of those whose messages it needs."""
    rounds = Rounds(pool, lambda _: ScriptJob(SCRIPT, (habit,), world_size=2), mail)
    rounds.run([rank])
    return rounds.seen


def names(found: Any) -> list[str]:
    """The ops of a step, in order."""
    templates = [found.program.templates[entry.template] for entry in found.program.skeleton]
    return [name for template in templates for name in column(template, "name")]


def flops(found: Any) -> int:
    """Of a step."""
    return sum(sum(column(template, "flops")) for template in found.program.templates.values())


def test_parameters_move_by_their_data(pool: WorkerPool, tmp_path: Path) -> None:
    (found,) = trace(pool, "moved", tmp_path).values()
    assert found.memory.parameters == 4 * (4 * 4 + 4)
    assert flops(found) == 2 * (2 * 2 * 4 * 4)  # forward and the weight's gradient: batch 2, 4 -> 4


def test_a_scaled_step_of_an_optimizer_that_is_not_fused(pool: WorkerPool, tmp_path: Path) -> None:
    (found,) = trace(pool, "scaled", tmp_path).values()
    ops = names(found)
    assert ops.count("aten::addcdiv_") == 2  # one for each parameter
    unscaled = ops.index("aten::_amp_foreach_non_finite_check_and_unscale_")
    assert unscaled < ops.index("aten::item") < ops.index("aten::addcdiv_")
    (overflow,) = [one for one, _ in found.asked if one.kind == "overflow"]
    assert overflow.answer == 0


def test_loaders_keep_what_is_given_by_position(pool: WorkerPool, tmp_path: Path) -> None:
    (found,) = trace(pool, "loaded", tmp_path).values()
    assert flops(found) == 2 * (2 * 3 * 4 * 4)  # three rows a batch


def test_a_mesh_sets_the_device_of_a_rank(pool: WorkerPool, tmp_path: Path) -> None:
    (found,) = trace(pool, "mesh", tmp_path).values()
    assert flops(found) == 2 * (2 * 2 * 4 * 4)


@pytest.mark.parametrize("habit", ["store", "flags"])
def test_a_store_and_a_broadcast_hand_on_what_another_rank_has(
    pool: WorkerPool, habit: str, tmp_path: Path
) -> None:
    seen = trace(pool, habit, tmp_path)
    assert sorted(seen) == [0, 1]  # rank 0 was needed
    first, second = 2 * 2 * 4 * 4, 2 * 2 * 4 * 6
    # The second layer's backward pass is two products, the first's one: its input needs no gradient.
    assert {flops(found) for found in seen.values()} == {2 * first + 3 * second}


def test_an_extension_that_is_missing_is_stood_in_for(pool: WorkerPool, tmp_path: Path) -> None:
    (found,) = trace(pool, "extension", tmp_path).values()
    assert found.stand_ins == ("fused_weight_gradient_mlp_cuda",)
    (row,) = [
        row
        for template in found.program.templates.values()
        for row in zip(*(column(template, name) for name in COLUMNS), strict=True)
        if row[0] == "wgrad_gemm_accum"
    ]
    # Batch 2, 4 -> 6: reads input, gradient (of a sum: one number) and what it adds to, writes the last.
    added = 4 * 6 * 4
    assert row[1:] == ("gemm", 2 * 2 * 4 * 6, 4 * 2 * 4 + 4 + added, added)
