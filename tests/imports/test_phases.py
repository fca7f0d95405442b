"""Backward and optimizer told by what the host was doing; times in us."""

import pytest

from tests.imports.traces import call, launched, step, write
from workloads.imports import import_traces
from workloads.imports.recording.host_notes import PhaseSpans


def host_event(name, start, length, cat="cpu_op", tid=2):
    return {"ph": "X", "cat": cat, "name": name, "pid": 100, "tid": tid, "ts": start, "dur": length}


def phases(job):
    rows = job.ranks[0].flat
    return [job.graph.ops.phase[row] for row in rows.tolist()]


def test_launches_inside_the_autograd_engine_are_backwards(tmp_path):
    events = [
        step(1, 0, 200),
        *launched("a", 10, 18, 5, corr=1),
        host_event("autograd::engine::evaluate_function: MmBackward0", 20, 9),
        host_event("autograd::engine::evaluate_function: AddBackward0", 22, 2),  # ends before its parent
        *launched("b", 21, 40, 5, corr=2),
        *launched("c", 28, 50, 5, corr=3),
        *launched("d", 29, 60, 5, corr=4),  # launched when the engine was done
        host_event("Optimizer.step#AdamW.step", 60, 30, cat="user_annotation", tid=1),
        call("cudaDeviceSynchronize", 62, 2, corr=9),
        *launched("e", 70, 80, 5, corr=5),
    ]
    job = import_traces([write(tmp_path / "t.json", events)])
    assert phases(job) == ["fwd", "bwd", "bwd", "fwd", "optimizer"]


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("backward_step", 1),
        ("Backward 3", 1),
        ("FullyShardedDataParallel._post_backward_hook", 1),
        ("Optimizer.zero_grad#SGD.zero_grad", 2),
        ("forward_step", 0),
        ("aten::mm", 0),
    ],
)
def test_names_of_phases(name, phase):
    assert PhaseSpans().phase(name) == phase


def test_without_such_events_everything_counts_as_forward(tmp_path):
    job = import_traces([write(tmp_path / "t.json", launched("a", 10, 18, 5, corr=1))])
    assert phases(job) == ["fwd"]
