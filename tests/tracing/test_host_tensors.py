"""Tensors of the host are computed, large ones stay shapes, and what is assumed is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from simcore.errors import InputError
from simcore.graph import Graph
from workloads.tracing.drive.fork_server import WorkerPool
from workloads.tracing.drive.rank_classes import TraceReport
from workloads.tracing.drive.script_job import ScriptJob
from workloads.tracing.drive.trace import trace_in

SCRIPT = Path(__file__).parent / "scripts" / "host.py"
LAYERS, WIDTH, VOCAB, BATCH, SEQ = 2, 64, 96, 3, 32  # of host.py


def trace(
    pool: WorkerPool, what: str, values: tuple[tuple[str, float], ...] = (), ranks: int = 1
) -> tuple[Graph, TraceReport]:
    report = TraceReport()
    job = ScriptJob(SCRIPT, (what,), world_size=ranks, gpus_per_node=ranks, values=values)
    return trace_in(pool, job, report), report


def site(comment: str) -> str:
    """The line of the script that ends with ``comment``."""
    lines = SCRIPT.read_text(encoding="utf-8").splitlines()
    return f"host.py:{1 + next(number for number, line in enumerate(lines) if line.endswith(comment))}"


def test_a_model_fed_from_a_file_computes_what_its_size_says(pool: WorkerPool) -> None:
    graph, report = trace(pool, "gpt")
    tokens, products = BATCH * SEQ, LAYERS * 12 * WIDTH**2 + VOCAB * WIDTH
    attention = 4 * LAYERS * WIDTH * SEQ * tokens  # two products of each pair of tokens
    # Backward: both products for each one, and flash attention computes its scores again.  Two evaluations.
    expected = 6 * products * tokens + attention * 7 // 2 + 2 * (2 * products * tokens + attention)
    (program,) = graph.programs
    assert int(graph.ops.flops[graph.flat_ops(program).row].sum()) == expected
    assert graph.workload.tokens_per_step == tokens  # those of the evaluations are not trained on
    assert {one["rule"] for one in report.values} == {"an unknown float"}  # losses alone
    assert report.warnings == [] and not Path("/nowhere").exists()


def test_what_no_host_holds_stays_a_shape(pool: WorkerPool) -> None:
    graph, report = trace(pool, "large")
    (program,) = graph.programs
    assert program.memory.parameters == 2 * 4 * 50_000**2
    assert report.values == []


def test_a_step_that_computes_nothing_is_refused_with_the_line_that_asked(pool: WorkerPool) -> None:
    asked = site("# asked here")
    with pytest.raises(InputError, match=f"no operation of the step has flops.*--value {asked}=..."):
        trace(pool, "nothing")
    graph, report = trace(pool, "nothing", ((asked, 6.0),))
    assert int(graph.ops.flops.sum()) == 2 * (2 * 6 * 4 * 4) and report.warnings == []


def test_a_kernel_on_nothing_is_a_warning_with_the_line_that_asked(pool: WorkerPool) -> None:
    _, report = trace(pool, "part")
    (warning,) = report.warnings
    assert "has a dimension of 0" in warning and f"--value {site('# asked here, too')}=..." in warning


def test_a_shard_without_rows_is_no_doubt(pool: WorkerPool) -> None:
    graph, report = trace(pool, "rows", ranks=2)
    ops = zip(graph.ops.name.tolist(), graph.ops.out_shapes.tolist(), strict=True)
    clamped = sorted(shapes for name, shapes in ops if name == "aten::clamp_")
    assert clamped == ["[[0]]", "[[1]]"] and report.warnings == []
