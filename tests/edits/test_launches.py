"""A traced graph folder launched eagerly, and as CUDA graphs."""

from __future__ import annotations

import json

import numpy as np
from typer.testing import CliRunner

from simcore.apps.main import app
from simcore.graph import OpKind, load_graph
from tests.edits.test_programs import GRAPHS

NO_LAUNCH = (OpKind.SYNC, OpKind.HOST, OpKind.EVENT_RECORD, OpKind.EVENT_WAIT)


def step_s(tmp_path, *arguments):
    result = CliRunner().invoke(
        app,
        ["run-sim", str(GRAPHS / "base"), "--out", str(tmp_path / "run"), "--force", "--json",
         "--set", "workload.kernels=unfused", *arguments],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["step_time_s"]


def test_a_slow_host_bounds_a_traced_job_unless_graphs_are_replayed(tmp_path):
    graph = load_graph(GRAPHS / "base")
    kinds = [graph.ops.kind[graph.flat_ops(program).row] for program in graph.programs]
    launches = max(int((~np.isin(kind, NO_LAUNCH)).sum()) for kind in kinds)
    slow = ["--set", "gpu.launch_overhead_s=30us"]
    eager, free = step_s(tmp_path, *slow), step_s(tmp_path, "--set", "gpu.launch_overhead_s=0")
    # One launch after the other, 30 us each, and the wait for the first of 8 microbatches.
    assert launches * 30e-6 <= eager < 1.15 * launches * 30e-6
    assert free < eager / 4
    assert step_s(tmp_path, *slow, "--edit", "cuda_graphs") == free
