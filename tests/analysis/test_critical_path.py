"""The critical path of the picture in :mod:`tests.synthetic`, walked by hand (K = 1,000 ps)."""

from __future__ import annotations

from pathlib import Path

from simcore.analysis import critical_path
from simcore.timeline import Timeline
from tests.synthetic import STEP_PS, K


def test_path_follows_what_was_waited_for(two_stage_run: Path) -> None:
    path = critical_path(Timeline.open(two_stage_run))
    # Backwards from 300: all_reduce 250-300, rank 0 was ready last, at 240 (10 queued); before, on rank 0,
    # recv ends at 200 (40 of launch); its sender was ready last, at 180, so on rank 1: gelu 160-180,
    # gemm 120-160, recv 100-120 whose sender, rank 0, was ready at 100: gemm 0-100.
    assert path.ops == ((0, 0), (0, 1), (1, 1), (1, 2), (1, 3), (0, 5))
    assert {key: total.time_ps / K for key, total in path.parts} == {
        ("gemm", "fwd"): 140,
        ("nccl::all_reduce", "grad_sync"): 50,
        ("launch and host", ""): 40,
        ("nccl::recv", "fwd"): 20,
        ("nccl::recv", "bwd"): 20,
        ("gelu", "bwd"): 20,
        ("queued on the GPU", ""): 10,
    }
    assert path.parts[0][0] == ("gemm", "fwd")


def test_parts_add_up_to_the_step(two_stage_run: Path) -> None:
    path = critical_path(Timeline.open(two_stage_run))
    assert sum(total.time_ps for _, total in path.parts) == path.step_ps == STEP_PS
    # Stage 0: all_reduce 50, queued 10, launch 40, recv 20, gemm 100; stage 1: recv 20, gemm 40, gelu 20.
    assert {stage: time // K for stage, time in path.by_stage.items()} == {0: 220, 1: 80}
