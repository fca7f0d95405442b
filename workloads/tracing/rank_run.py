"""Runs in a worker process: be one rank after another and record what each does."""

from __future__ import annotations

import gc
import os
import warnings
from dataclasses import dataclass
from pathlib import Path

from simcore.graph.graph import MemoryProfile
from workloads.tracing.job import MegatronGptJob
from workloads.tracing.templates import CutProgram, cut


@dataclass(frozen=True)
class RankTrace:
    """What a rank did with ``num_microbatches``, cut into templates.

    ``groups``: members of the groups it used, by symbol; ``families``: (symbol, members) of the groups that
    it asked for, on rank 0 every group of the world; ``memory`` holds the static bytes only.
    """

    rank: int
    stage: int
    num_microbatches: int
    program: CutProgram
    groups: dict[str, tuple[int, ...]]
    families: tuple[tuple[str, tuple[int, ...]], ...]
    layer_offset: tuple[int, ...]
    memory: MemoryProfile
    versions: dict[str, str]


def prepare(tier: str, cache: str) -> None:
    """Install the fake device, the patches and Megatron in this process, once."""
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")  # as Megatron asks for with tensor parallelism
    warnings.filterwarnings("ignore")
    import logging

    logging.disable(logging.WARNING)
    from workloads.tracing import fake_device

    fake_device.install(tier, Path(cache))
    from workloads.tracing import fake_cuda, fake_dist, fake_values, megatron_stubs

    fake_cuda.install()
    fake_values.install()
    fake_dist.install()
    megatron_stubs.install()
    from workloads.tracing import (
        megatron_gpt,  # noqa: F401  (imported here, once for all ranks)
        megatron_groups,
        megatron_hooks,
    )

    megatron_groups.install()
    megatron_hooks.install()


def run_rank(job: MegatronGptJob, rank: int, num_microbatches: int, warm_up: bool) -> RankTrace:
    """Record one step of one rank.

    ``warm_up`` runs a short step before the recorded one: the first step of a job also creates optimizer
    states and learns which gradients share a bucket.
    """
    import megatron.core
    import torch

    from workloads.tracing import fake_dist, fake_values, megatron_gpt, megatron_groups, megatron_hooks
    from workloads.tracing.expert_load import parse_load
    from workloads.tracing.group_names import group_symbol
    from workloads.tracing.recorder import Recorder

    megatron_groups.every_group = rank == 0
    megatron_gpt.enter_rank(job, rank)
    recorder = Recorder(load=parse_load(job.expert_load))
    recorder.known.active = job.num_experts > 0  # the order of experts is a tensor that the model begins with
    megatron_hooks.active = recorder
    try:
        with fake_values.make_fake_mode(), recorder:
            runner = megatron_gpt.GptRank(job, recorder)
            if warm_up:
                runner.step(job.fingerprint_microbatches)
            gc.collect()
            gc.disable()  # or the moment of a collection would show in storage lifetimes
            recorder.recording = True
            losses = runner.step(num_microbatches)
            recorder.recording = False
            memory = runner.static_memory()
            layer_offset = runner.layer_offset
            del losses, runner
    finally:
        gc.enable()
        megatron_hooks.active = None
    families = dict.fromkeys((group_symbol(name), ranks) for name, ranks in fake_dist.requested_groups)
    return RankTrace(
        rank=rank,
        stage=job.stage_of(rank),
        num_microbatches=num_microbatches,
        program=cut(recorder.result),
        groups=recorder.result.groups,
        families=tuple(families),
        layer_offset=layer_offset,
        memory=memory,
        versions={"torch": torch.__version__, "megatron-core": megatron.core.__version__},
    )
