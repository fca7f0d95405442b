"""What must not be slower than what: overlap, fewer bytes, less work, on several layouts."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from simcore.collectives import NcclPlanner
from simcore.cost import RooflineCost
from simcore.engine.shortcuts import simulate
from simcore.hardware import Topology, load_cluster
from workloads.jobs import complete
from workloads.jobs.advice import peak_bytes

LAYOUTS = {
    "data": {},
    "tensor": {"parallel.tp": "4"},
    "pipeline": {"parallel.tp": "2", "parallel.pp": "2", "parallel.virtual_stages": "2"},
    "context": {"parallel.cp": "2"},
    "sharded": {"training.sharding": "fsdp2", "software.preset": "megatron-core"},
}

#: Not slower -> than this, everything else the same.
PAIRS = [
    ({"training.overlap_grad_reduce": "true"}, {"training.overlap_grad_reduce": "false"}),
    ({"training.overlap_param_gather": "true"}, {"training.overlap_param_gather": "false"}),
    ({"training.overlap_p2p": "true"}, {"training.overlap_p2p": "false"}),
    ({"training.tp_overlap": "true"}, {"training.tp_overlap": "false"}),
    ({"training.precision": "fp8"}, {"training.precision": "bf16"}),
    ({"training.precision": "bf16"}, {"training.precision": "fp32"}),
    ({"training.recompute": "none"}, {"training.recompute": "selective"}),
    ({"training.recompute": "selective"}, {"training.recompute": "full"}),
    ({"training.recompute": "none"}, {"training.recompute": "ops"}),
    ({"training.grad_reduce_dtype": "bf16"}, {"training.grad_reduce_dtype": "fp32"}),
    ({"training.clip_gradients": "false"}, {"training.clip_gradients": "true"}),
    ({"training.optimizer": "sgd"}, {"training.optimizer": "adam"}),
    ({"training.trainable": "lora", "training.lora_rank": "8"}, {"training.trainable": "all"}),
    ({"training.trainable": "none"}, {"training.trainable": "lora", "training.lora_rank": "8"}),
    ({"training.reshard_after_forward": "false"}, {"training.reshard_after_forward": "true"}),
    ({"training.prefetch": "1"}, {"training.prefetch": "0"}),
]


@cache
def _seconds(settings: tuple[tuple[str, str], ...]) -> float:
    job = complete(
        {"model": "llama3-8b"}, "job", overrides={"model.layers": "4", **dict(settings)}, num_gpus=16,
        folder=Path(),
    )  # fmt: skip
    topology = Topology(load_cluster("h100-16"))
    result = simulate(job.graph(), topology, RooflineCost(topology.cluster.gpu), NcclPlanner(topology))
    return result.step_ps * 1e-12


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_less_work_or_more_overlap_is_never_slower(layout: str) -> None:
    for faster, slower in PAIRS:
        times = [_seconds(tuple(sorted({**LAYOUTS[layout], **one}.items()))) for one in (faster, slower)]
        # Communication beside compute takes some of its SMs: a percent where there was nothing to hide.
        assert times[0] <= 1.01 * times[1], (faster, slower)


def test_the_more_is_sharded_the_less_memory() -> None:
    """Bytes of the fullest stage: DDP, then optimizer, gradients and parameters over 16 ranks."""

    def held(sharding: str) -> int:
        overrides = {"training.sharding": sharding, "software.preset": "megatron-core"}
        return peak_bytes(
            complete({"model": "llama3-8b"}, "job", overrides=overrides, num_gpus=16, folder=Path())
        )

    ddp, zero1, zero2, zero3 = (held(sharding) for sharding in ("ddp", "zero1", "zero2", "zero3"))
    assert ddp > zero1 > zero2 > zero3
    # 8.03e9 parameters: Adam's 12 bytes of each, of which 15 of 16 ranks' shares are spared.
    assert ddp - zero1 == pytest.approx(8.03e9 * 12 * 15 / 16, rel=0.01)
