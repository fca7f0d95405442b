"""Ranks of which the data alone differ are told apart by what their samplers give them; else that is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import simcore
from simcore.graph import Graph
from workloads.tracing.drive.cli import app
from workloads.tracing.drive.fork_server import WorkerPool
from workloads.tracing.drive.rank_classes import TraceReport
from workloads.tracing.drive.script_job import ScriptJob
from workloads.tracing.drive.trace import trace_in

SCRIPT = Path(__file__).parent / "scripts" / "read.py"


def traced(pool: WorkerPool, how: str) -> tuple[Graph, TraceReport]:
    """Of eight ranks."""
    report = TraceReport()
    return trace_in(pool, ScriptJob(SCRIPT, (how,), world_size=8), report), report


@pytest.mark.parametrize(
    ("how", "classes", "run"),
    [
        ("sampler", [[0, 1, 3, 4, 6, 7], [2, 5]], {0, 2, 7}),  # 2 stands for 5, which reads as much
        ("pairs", [[0, 1, 6, 7], [2, 3, 4, 5]], {0, 2, 4, 7}),
        ("equal", [list(range(8))], {0, 7}),
    ],
)
def test_samplers_tell_what_ranks_read_that_are_not_run(
    how: str, classes: list[list[int]], run: set[int], pool: WorkerPool
) -> None:
    graph, report = traced(pool, how)
    assert [list(one.rank_list()) for one in graph.programs] == classes
    assert run <= set(report.ranks_run) and (how == "pairs" or len(report.ranks_run) == len(run))
    lengths = [32 if rank in classes[-1] and len(classes) > 1 else 16 for rank in range(8)]
    assert graph.workload.tokens_per_step == sum(2 * one for one in lengths) // (2 if how == "pairs" else 1)
    assert "as their samplers would" in report.not_run and not report.warnings


@pytest.mark.parametrize("how", ["own", "hand"])
def test_what_no_sampler_tells_is_said(how: str, one_pool: None, tmp_path: Path) -> None:
    folder = tmp_path / "graph"
    done = CliRunner().invoke(app, [str(SCRIPT), how, "--world-size", "8", "--out", str(folder)])
    said = "ranks not run: 1-6; that their batches have the shapes of their class is taken for granted"
    assert done.exit_code == 0 and said in done.stdout and "warning" not in done.stderr
    assert json.loads((folder / "trace.json").read_text(encoding="utf-8"))["not_run"] == said
    assert said in simcore.simulate(simcore.load(folder, cluster="h100-8")).assumptions
