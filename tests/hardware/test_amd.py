"""AMD's Instinct GPUs: profiles, a mesh of links in place of switches, steps on them."""

from __future__ import annotations

from pathlib import Path

import pytest

from simcore.apps.measured.kernels import predict_rows, read_kernel_rows
from simcore.collectives import NcclPlanner
from simcore.hardware import Topology, assumptions, load_cluster, named_board
from simcore.run import Setup, run
from workloads.jobs import complete


@pytest.mark.parametrize(
    ("name", "units", "flops_per_clock", "clock_hz"),
    [("mi300x", 304, 2048, 2.1e9), ("mi325x", 304, 2048, 2.1e9), ("mi350x", 256, 4096, 2.2e9),
     ("mi355x", 256, 4096, 2.4e9)],
)  # fmt: skip
def test_peaks_are_units_times_clock(name: str, units: int, flops_per_clock: int, clock_hz: float) -> None:
    gpu = load_cluster(f"{name}-8").gpu
    assert gpu.num_sms == units and gpu.boost_clock_hz == clock_hz
    assert gpu.peak("bf16") == pytest.approx(units * flops_per_clock * clock_hz, rel=1e-3)
    assert gpu.peak("fp8") == pytest.approx(2 * gpu.peak("bf16"), rel=1e-3)
    assert ("fp4" in gpu.peak_flops) == (name in ("mi350x", "mi355x"))
    board = named_board(f"AMD Instinct {name.upper()}")
    assert board is not None and (board.gpu, board.cluster) == (name, name)


def test_what_nobody_measured_is_said() -> None:
    cluster = load_cluster("mi300x-8")
    assert "cdna3 has no timing of collectives" in cluster.gpu.borrowed
    assert "no training run of this one was at hand" in cluster.gpu.load_remarks(8)[1]
    assert any("nvlink_latency_s: assumption" in line for line in assumptions(cluster))


def test_a_lower_power_limit_leaves_a_lower_clock() -> None:
    # 1,000 of 1,400 W for 0.917 of the rate at the rated clock: (739 / 1139 / 0.917) ** (1 / 2.4) = 0.866.
    fast, slow = (load_cluster(f"{name}-8").gpu.sustained for name in ("mi355x", "mi350x"))
    assert fast is not None and slow is not None
    assert slow.clock / fast.clock == pytest.approx(0.866, abs=0.005)


def test_rings_use_up_the_mesh_of_one_node_and_the_nics_of_two() -> None:
    size = 1 << 33
    for name, per_s in (("mi300x-8", 7 * 48e9), ("mi300x-16", 8 * 50e9 * 0.94)):
        cluster = load_cluster(name)
        planner = NcclPlanner(Topology(cluster))
        count = cluster.num_gpus
        took_s = planner.plan("all_reduce", size, range(count)).alone_ps / 1e12
        least_s = size * 2 * (count - 1) / count / per_s
        assert least_s < took_s < 1.06 * least_s


def test_a_step_is_faster_on_a_newer_gpu() -> None:
    said = {
        "model": {"layers": 2, "hidden": 4096, "heads": 32, "ffn": 14336, "vocab": 32000},
        "parallel": {"tp": 8}, "training": {"micro_batch": 1, "global_batch": 2, "seq": 4096},
    }  # fmt: skip
    steps = []
    for name in ("mi300x-8", "mi355x-8"):
        cluster = load_cluster(name)
        job = complete(said, "a job", num_gpus=8, generation=cluster.gpu.generation)
        steps.append(run(job.graph(), cluster, Setup()).step_s)
    assert steps[1] < steps[0]


def test_kernels_follow_what_was_measured_of_them() -> None:
    rows, refused = read_kernel_rows(Path(__file__).parent.parent / "cost" / "amd_kernels.csv")
    assert (len(rows), refused) == (47, [])
    for kind, most in (("gemm", 0.09), ("attention", 0.09)):
        found = [row for row in rows if row.family.startswith(kind)]
        errors = [abs(s / row.seconds - 1) for s, row in zip(predict_rows(found), found, strict=True)]
        assert sum(errors) / len(errors) < most
