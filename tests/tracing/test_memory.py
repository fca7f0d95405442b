"""Peaks of traced programs against the same programs on a GPU: PyTorch 2.11 with CUDA 13.0 on one H200.

Measured are ``allocated_bytes.all.peak`` and ``reserved_bytes.all.peak`` of ``torch.cuda.memory_stats()``
over the first five steps.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simcore.apps.main import app
from simcore.graph import save_graph
from workloads.tracing.drive.fork_server import WorkerPool
from workloads.tracing.drive.rank_classes import TraceReport
from workloads.tracing.drive.script_job import ScriptJob
from workloads.tracing.drive.trace import trace_in

SCRIPT = Path(__file__).parent / "scripts" / "gpt.py"
TINY = "--layers 2 --hidden 256 --heads 4 --seq 256 --batch 4 --vocab 1024"
LLAMA = "--style llama --hidden 1024 --heads 16 --kv_heads 4 --batch 4 --seq 2048 --vocab 32000"
MIB = 1 << 20


@pytest.mark.parametrize(
    ("arguments", "allocator", "allocated_mib", "reserved_mib"),
    [(TINY, "", 123.041, 144), (LLAMA, "expandable_segments:True", 9926.65, 10502)],
)
def test_what_is_allocated_and_reserved_is_within_two_percent_of_a_gpu(
    pool: WorkerPool,
    tmp_path: Path,
    arguments: str,
    allocator: str,
    allocated_mib: float,
    reserved_mib: float,
) -> None:
    report = TraceReport()
    job = ScriptJob(SCRIPT, tuple(arguments.split()), world_size=1, gpus_per_node=1)
    save_graph(trace_in(pool, job, report), tmp_path / "graph", report.write)
    words = ["run-sim", str(tmp_path / "graph"), "--cluster", "h100-8", "--memory-only", "--json"]
    words += ["--set", f"memory.allocator={allocator}"] if allocator else []
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    (found,) = json.loads(result.stdout)["stages"]
    assert found["allocated_bytes"] == pytest.approx(allocated_mib * MIB, rel=0.02)
    assert found["reserved_bytes"] == pytest.approx(reserved_mib * MIB, rel=0.02)
