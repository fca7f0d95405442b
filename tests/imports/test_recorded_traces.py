"""Replay of real recordings, where their folder is given: REAL_TRACES=folder pytest tests/imports."""

import os
from pathlib import Path

import pytest

from simcore.apps.replay.play import play
from workloads.imports import import_traces

FOLDER = Path(os.environ.get("REAL_TRACES", "no-such-folder"))
#: File, number of steps of all ranks, GPU span and exposed communication of the first step in ms, computed
#: from the raw events without this project (communication that no compute kernel covers).
TRACES = [
    ("hta/trace_diff_control_a100_rank3of8.json.gz", 6, 75.103, 9.704),
    ("hta/nccl_data_a100_ddp_rank0of2.json.gz", 3, 215.769, 10.164),
    ("hta/ns_resolution_v100_gpu_bound.json.gz", 5, 97.663, 0.0),
    ("hta/alexnet_a100_cuda_sync.json.gz", 1, 12920.244, 0.0),
    ("tracelens-h100-single/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz", 1, 34.892, 0.0),
    ("param-dlrm-et-kineto/dlrm_kineto.tar.gz", 8, None, None),
    ("param-dlrm-et-kineto", 8, None, None),
    ("nsys-ai-2gpu/mfu_2gpu_before.sqlite", 2, None, None),
]


@pytest.mark.parametrize(("name", "steps", "span_ms", "exposed_ms"), TRACES)
@pytest.mark.parametrize(("gaps", "bound"), [("recorded", 0.001), ("typical", 0.03)])
def test_replay_of_a_recording(name, steps, span_ms, exposed_ms, gaps, bound):
    path = FOLDER / name
    if not path.exists():
        pytest.skip(f"{name} is not at hand")
    rows = play(import_traces([path], gaps=gaps)).steps()
    assert len(rows) == steps
    assert max(abs(row.error) for row in rows) <= bound
    if span_ms is not None:
        assert 1e3 * rows[0].recorded.span == pytest.approx(span_ms, abs=0.001)
        assert 1e3 * rows[0].recorded.exposed_communication == pytest.approx(exposed_ms, abs=0.001)
