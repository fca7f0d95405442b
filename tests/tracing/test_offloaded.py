"""Optimizers that step on the host."""

from __future__ import annotations

from pathlib import Path

from tests.tracing.small_jobs import rows
from workloads.tracing.drive import rank_run
from workloads.tracing.drive.fork_server import WorkerPool
from workloads.tracing.drive.script_job import ScriptJob

SCRIPT = Path(__file__).parent / "scripts" / "offloaded.py"


def test_an_optimizer_on_the_host_passes_over_its_memory(pool: WorkerPool) -> None:
    """Adam: reads the gradient, reads and writes the parameter and two states, 4 bytes each; all wait."""
    job = ScriptJob(SCRIPT, world_size=2, gpus_per_node=2)
    found = pool.submit(rank_run.run_rank, job, 0).result()
    host = [row for row in rows(found, "name", "stream", "bytes_read", "blocking") if row[1] == "host"]
    shard = 512 * 512 // 2
    (arrived, update, last) = host
    assert arrived[0] == "cudaEventSynchronize" and arrived[3]  # the gradients are on the host
    assert update[0] == "cpu_fused_adamw" and update[2] == 28 * shard + 4  # and the count of steps
    assert last[0] == "cpu_fused_adamw" and last[3]
