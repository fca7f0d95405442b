"""The picture of :mod:`tests.synthetic`, analysed: all figures are derived by hand (K = 1,000 ps)."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from simcore.analysis import StepAnalysis, analyse
from simcore.analysis.links import step_links
from simcore.errors import InputError
from simcore.files import write_manifest
from simcore.timeline import Timeline
from tests.synthetic import STEP_PS, K


@pytest.fixture
def analysis(two_stage_run: Path) -> StepAnalysis:
    return analyse(Timeline.open(two_stage_run))


def test_breakdown_of_each_rank(analysis: StepAnalysis) -> None:
    # Rank 0: compute 0-100 110-150 200-260 = 200; communication 100-120 180-200 250-300 = 90;
    #         both 110-120 and 250-260 = 20; so 180 / 20 / 70 and 300 - 270 = 30 idle.
    # Rank 1: compute 120-180 = 60; communication 90, never both; 300 - 150 = 150 idle.
    first, second = (rank.breakdown for rank in analysis.ranks)
    assert [part // K for part in first.parts().values()] == [180, 20, 70, 30]
    assert [part // K for part in second.parts().values()] == [60, 0, 90, 150]
    assert first.step == second.step == STEP_PS


def test_mean_breakdown(analysis: StepAnalysis) -> None:
    # (180 + 60) / 2, (20 + 0) / 2, (70 + 90) / 2, (30 + 150) / 2
    assert [part / K for part in analysis.breakdown.parts().values()] == [120, 10, 80, 90]
    assert analysis.breakdown_s()["idle"] == pytest.approx(90e-9)
    assert {stage: part.idle / K for stage, part in analysis.stages().items()} == {0: 30, 1: 150}


def test_a_profiler_counts_waiting_as_communication(analysis: StepAnalysis) -> None:
    # On the GPU from ready: rank 0 100-120 150-200 240-300 = 130, with compute 10 + 20 = 30 of 200;
    # rank 1 0-120 180-300 = 240, never beside compute (120-180).
    first, second = (rank.profiled for rank in analysis.ranks)
    assert [part // K for part in first.parts().values()] == [170, 30, 100, 0]
    assert [part // K for part in second.parts().values()] == [60, 0, 240, 0]
    assert analysis.profiled.exposed_communication / K == (100 + 240) / 2


def test_bubble_counts_send_and_recv_but_not_collectives(analysis: StepAnalysis) -> None:
    # Work of stage 0: 0-100 110-150 200-300 = 240, of stage 1: 120-180 250-300 = 110; (60 + 190) / 2 of 300.
    assert [rank.bubble_ps // K for rank in analysis.ranks] == [60, 190]
    assert analysis.bubble_fraction == pytest.approx(125 / 300)


def test_contention_and_waiting(analysis: StepAnalysis) -> None:
    # Compute: 10 more than alone per kernel, 3 and 2 kernels; all_reduce: 50 taken, 45 alone.
    assert analysis.compute_contention_ps / K == (30 + 20) / 2
    assert analysis.communication_contention_ps / K == 5
    # start - ready: recv 30 and all_reduce 10 on rank 0; recv 100 and all_reduce 50 on rank 1.
    assert analysis.waiting_ps / K == (40 + 150) / 2
    assert analysis.queueing_ps / K == 5 / 2


def test_throughput_conventions(analysis: StepAnalysis) -> None:
    # 2 GPUs x 300e3 ps = 6e-7 GPU seconds; peak 1 Tflop/s each.
    rates = analysis.throughput
    assert rates.model_tflops_per_gpu == pytest.approx(16_500 / 6e-7 / 1e12)
    assert rates.mfu == pytest.approx(0.0275)
    assert rates.mfu_full_attention == pytest.approx(17_000 / 6e-7 / 1e12)
    assert rates.hfu == pytest.approx(19_000 / 6e-7 / 1e12)
    assert rates.tokens_per_s == pytest.approx(600 / 3e-7)


def test_time_by_kernel_collective_and_phase(analysis: StepAnalysis) -> None:
    kernels = {key[0]: (total.count, total.time_ps / K) for key, total in analysis.kernels}
    assert kernels == {"gemm": (3, 200), "aten::bmm": (1, 40), "gelu": (1, 20)}
    assert [key[0] for key, _ in analysis.kernels] == ["gemm", "aten::bmm", "gelu"]
    collectives = {
        key: (total.count, total.time_ps / K, total.num_bytes) for key, total in analysis.collectives
    }
    assert collectives == {
        ("nccl::all_reduce", "dp", "ring", "Simple"): (2, 100, 512),
        ("nccl::send", "pp", "p2p", "Simple"): (2, 40, 128),
        ("nccl::recv", "pp", "p2p", "Simple"): (2, 40, 128),
    }
    phases = {key: total.time_ps / K for key, total in analysis.phases}
    assert phases[("recompute", "compute")] == 60
    assert phases[("fwd", "compute")] == 100 + 40 + 40


def test_a_rank_that_stands_for_more_counts_for_more(two_stage_run: Path) -> None:
    classes = pq.read_schema(two_stage_run / "rank_classes.parquet")
    columns = {"rank": [0, 1, 2], "rank_class": [0, 1, 1], "representative": [0, 1, 1]}
    table = pa.table({name: pa.array(values, pa.int32()) for name, values in columns.items()})
    pq.write_table(table.cast(classes), two_stage_run / "rank_classes.parquet")
    record = two_stage_run / "run.json"
    record.write_text(record.read_text().replace('"world_size": 2', '"world_size": 3'))
    write_manifest(two_stage_run, "run")
    analysis = analyse(Timeline.open(two_stage_run))
    # Exposed compute 180 once and 60 twice; gemm 100 + 60 on rank 0, 40 on each of ranks 1 and 2.
    assert analysis.num_ranks == 3
    assert analysis.breakdown.exposed_compute / K == pytest.approx((180 + 2 * 60) / 3)
    assert dict(analysis.kernels)[("gemm",)].time_ps / K == 160 + 2 * 40


@pytest.mark.parametrize("rows_a_part", [1, 2, 3, 100])
def test_links_are_read_a_part_at_a_time(two_stage_run: Path, rows_a_part: int) -> None:
    rows = [(0, "a", 2e9), (100 * K, "a", 0.0), (150 * K, "a", 1e9), (0, "b", 3e9), (50 * K, "b", 0.0)]
    _write_counters(two_stage_run, rows, rows_a_part)
    links = {link.name: link for link in step_links(Timeline.open(two_stage_run)).links}
    # Link a: 2 GB/s for 100 K ps and 1 GB/s for what is left of the step behind 150 K; b: 3 GB/s for 50 K.
    assert links["a"].num_bytes == pytest.approx((2e9 * 100 * K + 1e9 * (STEP_PS - 150 * K)) * 1e-12)
    assert links["b"].num_bytes == pytest.approx(3e9 * 50 * K * 1e-12)
    assert (links["a"].highest, links["b"].highest) == (2e9, 3e9)


@pytest.mark.parametrize("rows_a_part", [1, 100])
def test_rows_of_a_link_that_are_not_together_are_refused(two_stage_run: Path, rows_a_part: int) -> None:
    _write_counters(two_stage_run, [(0, "a", 2e9), (0, "b", 3e9), (50 * K, "a", 0.0)], rows_a_part)
    with pytest.raises(InputError, match="not together"):
        step_links(Timeline.open(two_stage_run))


def _write_counters(run: Path, rows: list[tuple[int, str, float]], rows_a_part: int) -> None:
    file = run / "counters.parquet"
    schema = pq.read_schema(file)
    columns = dict(zip(("time_ps", "resource", "value"), map(list, zip(*rows, strict=True)), strict=True))
    pq.write_table(pa.table(columns).cast(schema), file, row_group_size=rows_a_part)
    write_manifest(run, "run")
