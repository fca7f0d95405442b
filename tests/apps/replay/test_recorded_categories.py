"""Kernel time by category of real recordings, where their folder is given: REAL_TRACES=folder pytest."""

import os
from pathlib import Path

import pytest

from simcore.apps.replay.categories import categories, category_times
from simcore.apps.replay.play import play
from workloads.imports import import_traces

FOLDER = Path(os.environ.get("REAL_TRACES", "no-such-folder"))
#: ms of the whole trace, summed from the raw events without this project.  Its coarser "gemm/conv" holds what
#: is attention here.
TRACES = [
    (
        "hta/trace_diff_control_a100_rank3of8.json.gz",
        {"communication": 163.535, "memcpy": 53.498, "memset": 1.256, "elementwise/copy": 85.603,
         "gemm/conv": 82.692},
    ),
    ("hta/nccl_data_a100_ddp_rank0of2.json.gz", {"communication": 46.876, "memcpy": 2.263, "memset": 0.391}),
    ("hta/ns_resolution_v100_gpu_bound.json.gz", {"memcpy": 3.715, "memset": 0.585}),
    (
        "tracelens-h100-single/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
        {"elementwise/copy": 27.67, "gemm/conv + attention": 16.649, "reduce/norm": 1.062, "memset": 0.212},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "expected"), TRACES)
def test_categories_of_a_recording(name, expected):
    path = FOLDER / name
    if not path.is_file():
        pytest.skip(f"{name} is not at hand")
    replay = play(import_traces([path]))
    recorded = replay.job.ranks[0].recorded
    everything = list(range(len(recorded)))
    found = category_times(categories(recorded), everything, replay.start_ps[0], replay.end_ps[0])
    for key, milliseconds in expected.items():
        total = sum(1e3 * found[part] for part in key.split(" + "))
        assert total == pytest.approx(milliseconds, rel=0.003, abs=0.001), key
