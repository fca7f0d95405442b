"""Checkpoints on the way of a program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tracing.small_jobs import rows
from workloads.tracing.drive import rank_run
from workloads.tracing.drive.fork_server import WorkerPool
from workloads.tracing.drive.script_job import ScriptJob

SCRIPT = Path(__file__).parent / "scripts" / "checkpoints.py"


def calls(pool: WorkerPool, mode: str, folder: Path) -> list[tuple[Any, ...]]:
    """The collectives of the third step."""
    job = ScriptJob(SCRIPT, (mode, str(folder)), world_size=2)
    found = pool.submit(rank_run.run_rank, job, 1).result()
    return [row for row in rows(found, "collective", "num_bytes") if row[0]]


def test_an_optimizer_that_makes_its_states_to_load_them_takes_no_step(
    pool: WorkerPool, tmp_path: Path
) -> None:
    # In the second step DDP tells the others the order of its buckets; the third reduces 20 gradients.
    assert calls(pool, "resumed", tmp_path) == [("all_reduce", 4 * (4 * 4 + 4))]


@pytest.mark.parametrize("mode", ["awaited", "older", "safe"])
def test_files_of_checkpoints_are_not_touched(pool: WorkerPool, mode: str, tmp_path: Path) -> None:
    if mode == "safe":
        pytest.importorskip("safetensors")
    # Gathered once, the root's backward pass keeps it: weight and bias of the two shards.
    sharded = [("all_gather", 4 * (4 * 4 + 4)), ("reduce_scatter", 4 * (4 * 4 + 4))]
    assert calls(pool, mode, tmp_path) == (sharded if mode == "awaited" else [])
    assert not list(tmp_path.iterdir())
