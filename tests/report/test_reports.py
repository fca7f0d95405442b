"""Summary, JSON object and picture of a run."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from simcore.analysis import analyse
from simcore.errors import InputError
from simcore.report import json_object, summary, write_plot
from simcore.timeline import Timeline
from simcore.timeline.info import NearestRun, StepBand

CONTRACT = [
    "step_time_s",
    "band",
    "nearest",
    "breakdown_s",
    "mfu",
    "model_tflops_per_gpu",
    "tokens_per_s",
    "peak_memory_bytes",
    "gpus",
    "rank_classes",
    "engine_events",
    "wall_s",
    "timeline",
    "warnings",
    "job",
    "parallel",
    "training",
    "assumed",
]


def test_json_object_has_the_contracts_keys(two_stage_run: Path) -> None:
    timeline = Timeline.open(two_stage_run)
    found = json_object(timeline.info, analyse(timeline), timeline.path, 1.5)
    assert list(found) == CONTRACT
    # 300,000 ps; breakdown means 120, 10, 80, 90 thousand ps; peak of the fuller stage; 17 events.
    assert found["step_time_s"] == pytest.approx(300e-9)
    assert found["breakdown_s"] == pytest.approx(
        {"exposed_compute": 120e-9, "overlapped": 10e-9, "exposed_communication": 80e-9, "idle": 90e-9}
    )
    assert (found["peak_memory_bytes"], found["gpus"], found["engine_events"]) == (700, 2, 17)
    assert (found["wall_s"], found["timeline"]) == (1.5, str(two_stage_run / "timeline.parquet"))
    assert (found["band"], found["nearest"]) == (None, [])


def text_of(run: Path) -> str:
    timeline = Timeline.open(run)
    console = Console(width=100, record=True, file=(run / "out.txt").open("w", encoding="utf-8"))
    console.print(summary(timeline.info, analyse(timeline)))
    return console.export_text()


def test_summary_says_what_matters(two_stage_run: Path) -> None:
    lines = {line.split("  ")[0].strip(): line for line in text_of(two_stage_run).splitlines()}
    assert "two-stages on 2 GPUs (tiny) of cluster two, fluid network" in lines
    assert "PP2, global batch 75 of 8 tokens, 1 microbatch of 1, fp32" in text_of(two_stage_run)  # 600 tokens
    assert "300 ns" in lines["step time"]
    idle = next(line for line in text_of(two_stage_run).splitlines() if line.strip().startswith("idle"))
    assert idle.split()[1:] == ["90", "ns", "30.0%", "0.0%"]
    assert "41.7%" in lines["pipeline bubble"]  # 125 of 300
    assert lines["MFU, causal attention once"].split()[-1] == "2.8%"  # 0.0275 of 1 TFLOP/s
    assert lines["MFU, all attention scores"].split()[-1] == "2.8%"
    assert lines["HFU, all that is executed"].split()[-1] == "3.2%"
    assert lines["0"].endswith("700 B  1000 B ") or "700 B" in lines["0"]
    assert "warning: written by hand" in lines
    assert "kernel times come from: roofline 100.0%" in lines


def test_summary_says_whose_constants_stand_in(two_stage_run: Path) -> None:
    timeline = Timeline.open(two_stage_run)
    why = "assumption: xanadu has no constants of kernels of its own: those of hopper"
    gpu = {"generation": "xanadu", "like": "hopper", "sources": {"generation": why}}
    info = timeline.info.model_copy(
        update={
            "origins": {"fitted": 0.9, "roofline": 0.1},
            "cluster": {**timeline.info.cluster, "gpu": {**timeline.info.cluster.get("gpu", {}), **gpu}},
        }
    )
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(summary(info, analyse(timeline)))
    assert "kernel times come from: fitted on hopper 90.0%, roofline 10.0%" in console.export_text()


def test_summary_states_the_band_and_what_it_rests_on(two_stage_run: Path) -> None:
    timeline = Timeline.open(two_stage_run)
    band = StepBand(
        low_s=285e-9, high_s=330e-9, level=0.8, runs=46.2, widened=1.2, reasons=("no measured run in fp32",)
    )
    run = NearestRun(
        id="mpf_Table4_Qwen2-57B-A14B_FSDP-EP_256_4096_bf16", family="f", framework="megatron-core",
        distance=0.5, predicted_s=9.5, measured_s=10.0, error=-0.05,
        differs=("megatron-core-fsdp", "experts", "256 GPUs", "ep 4", "bf16"),
    )  # fmt: skip
    info = timeline.info.model_copy(update={"band": band, "nearest": (run,)})
    console = Console(width=80, record=True, file=(two_stage_run / "out.txt").open("w", encoding="utf-8"))
    console.print(summary(info, analyse(timeline)))
    text = console.export_text()
    lines = {line.split("  ")[0].strip() or line.strip(): line for line in text.splitlines()}
    assert "285 to 330 ns" in next(line for line in text.splitlines() if "80% band" in line)
    said = " ".join(text.split())
    # 285 / 300 and 330 / 300, less one.
    assert "step time 300 ns, 80% band 285 to 330 ns (-5.0% to +10.0%): what predictions of" in said
    assert "(46 of equal weight)" in said
    assert "the band is 20% wider, as no measured run is near:" in lines
    assert "no measured run in fp32" in lines
    row = next(line for line in text.splitlines() if line.rstrip().endswith("-5.0%"))
    assert row.split()[-5:] == ["9.5", "s", "10", "s", "-5.0%"]
    assert "megatron-core-fsdp, experts, 256 GPUs, 2 more" in said or "2 more" in said
    assert max(map(len, text.splitlines())) <= 80
    found = json_object(info, analyse(timeline), timeline.path, 1.5)
    assert found["band"] == {
        "low_s": 285e-9, "high_s": 330e-9, "level": 0.8, "runs": 46.2, "widened": 1.2,
        "reasons": ["no measured run in fp32"],
    }  # fmt: skip
    nearest = found["nearest"]
    assert isinstance(nearest, list)
    assert nearest[0]["differs"][0] == "megatron-core-fsdp"


def test_summary_shows_phases(two_stage_run: Path) -> None:
    rows = [line.split() for line in text_of(two_stage_run).splitlines()]
    # recompute: gemm 60 on rank 0 alone; grad_sync: all_reduce 50 on both.
    assert ["recompute", "30", "ns", "0", "ps"] in rows
    assert ["grad_sync", "0", "ps", "50", "ns"] in rows


def test_summary_ranks_kernels_by_time(two_stage_run: Path) -> None:
    text = text_of(two_stage_run)
    # gemm: 3 calls and 200 ns on two ranks, 100 of 300 ns each; alone 90 + 50 + 30 = 170: 200 / 170.
    row = next(line for line in text.splitlines() if line.strip().startswith("gemm"))
    assert row.split() == ["gemm", "1.5", "100", "ns", "33.3%", "1.176x"]
    assert text.index("gemm") < text.index("aten::bmm") < text.index("gelu")


def test_picture(two_stage_run: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    timeline = Timeline.open(two_stage_run)
    write_plot(timeline, tmp_path / "step.png", [0, 1])
    assert (tmp_path / "step.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InputError, match="nosuch"):
        write_plot(timeline, tmp_path / "step.nosuch", [0, 1])
    assert not (tmp_path / "step.nosuch").exists()
