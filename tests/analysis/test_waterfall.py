"""From ideal to actual: parts that add up to the picosecond, whatever the job."""

from __future__ import annotations

from pathlib import Path

import pytest

import simcore
from simcore.analysis import analyse
from simcore.analysis.waterfall import PARTS, axis_of, clocks
from simcore.timeline import Timeline

K = 1_000


def test_parts_by_hand(two_stage_run: Path) -> None:
    """Both ranks together, in units of 1,000 ps; see the picture in tests/synthetic.py.

    Rank 0: kernels 100 + 40 + 60, of which 10 each are contention; the send is exposed before the second
    kernel (10), the recv whole (20), of the all_reduce 40, a tenth contention; it waits for the recv 30.
    Rank 1: kernels 40 + 20, 10 each contention; recv and send 20 each, all_reduce 50, 5 of them contention;
    100 before the recv, and 50 in which the all_reduce waits for rank 0.
    """
    found = analyse(Timeline.open(two_stage_run)).waterfall
    # 16,500 model flops, causal attention once, at 1 Tflop/s: 16.5 of the 160 that products take alone.
    expected = {
        "ideal": 16.5, "products": 160 - 16.5, "recompute": 50, "kernel_contention": 50, "pipeline": 70,
        "data": 81, "communication_contention": 9, "peers": 50, "bubble": 130,
    }  # fmt: skip
    assert {name: ps / K for name, ps in found.gpu_ps.items() if ps} == expected
    assert sum(found.gpu_ps.values()) == found.step_ps * found.num_ranks == 600 * K
    assert list(found.gpu_ps) == list(PARTS)


JOBS: dict[str, dict[str, object]] = {
    "pipeline": {"parallel": {"tp": 2, "pp": 2, "virtual_stages": 2}},
    "recompute": {"parallel": {"pp": 4}, "training": {"recompute": "full"}},
    "context": {"parallel": {"cp": 2, "tp": 2}},
    "fsdp": {"training": {"sharding": "fsdp2"}},
    "straggler": {"parallel": {"tp": 2}, "settings": {"rank.3.gpu.clock": 0.5}},
    "noise": {"parallel": {"pp": 2}, "settings": {"noise.sigma": 0.1}},
    "cool": {"parallel": {"tp": 2}, "settings": {"gpu.conditions": "cool"}},
    "experts": {
        "parallel": {"ep": 4, "pp": 2}, "model": {"moe": {"num_experts": 8, "top_k": 2, "ffn": 256}},
    },
}  # fmt: skip
MODEL = {"layers": 4, "hidden": 256, "heads": 4, "ffn": 512, "vocab": 1024}


@pytest.mark.parametrize("name", JOBS)
def test_parts_add_up_to_the_step_exactly(name: str) -> None:
    said = dict(JOBS[name])
    model = {**MODEL, **dict(said.pop("model", {}))}  # type: ignore[call-overload]
    training = {"seq": 256, "global_batch": 32, **dict(said.pop("training", {}))}  # type: ignore[call-overload]
    job = simcore.describe(model, cluster="h100-8", training=training, **said)  # type: ignore[arg-type]
    run = simcore.simulate(job)
    found = analyse(run.timeline).waterfall
    assert sum(found.gpu_ps.values()) == run.info.step_ps * run.info.workload.world_size
    assert all(isinstance(ps, int) for ps in found.gpu_ps.values())
    seconds = found.seconds()
    assert seconds["ideal"] / run.step_time_s == pytest.approx(run.mfu, rel=1e-6)
    exposed = {"tensor": "tp", "context": "cp", "expert": "ep", "pipeline": "pp", "data": "dp"}
    degrees = {**run.info.workload.dims, "ep": job.complete.parallel.ep}
    for part, axis in exposed.items():
        assert found.gpu_ps[part] == 0 or degrees[axis] > 1, part
    assert (found.gpu_ps["recompute"] > 0) == (name == "recompute")
    assert (found.gpu_ps["clock"] == 0) == (name == "cool")
    if name == "straggler":  # others wait for it
        assert found.gpu_ps["peers"] > 0.05 * run.info.step_ps * 6
    # Exposed communication is told in one way: that of the summary, less what sharing adds.
    moving = sum(
        ps for part, ps in found.gpu_ps.items() if part in (*exposed, "other", "communication_contention")
    )
    total = run.breakdown_s["exposed_communication"] * 8
    assert moving / 1e12 == pytest.approx(total, rel=1e-9)


def test_clocks_are_those_of_the_run() -> None:
    job = simcore.describe("llama3-8b", cluster="h100-8", parallel={"tp": 2}, settings={"model.layers": 1})
    run = simcore.simulate(job)
    mean, slowest = clocks(run.info)
    rated = simcore.simulate(job.changed(settings={"gpu.conditions": "cool"}))
    assert slowest < mean < 1
    assert clocks(rated.info) == (1.0, 1.0)
    # The clock of the slowest stands in the run's own words.
    assert any(f"SM clock under load: {slowest:.3f}" in line for line in run.assumptions)


@pytest.mark.parametrize(
    ("group", "phase", "kind", "axis"),
    [
        ("tp", "fwd", "collective", "tensor"), ("cp", "fwd", "send", "context"),
        ("pp", "bwd", "recv", "pipeline"),
        ("dp_cp", "grad_sync", "collective", "data"), ("expert_dp", "grad_sync", "collective", "data"),
        ("ep", "fwd", "collective", "expert"), ("embd", "grad_sync", "collective", "data"),
        ("world", "optimizer", "collective", "other"), ("group7", "fwd", "send", "pipeline"),
    ],
)  # fmt: skip
def test_axes_of_groups(group: str, phase: str, kind: str, axis: str) -> None:
    assert axis_of(group, phase, kind) == axis
