"""A recorded kernel and the communication beside it, played on the engine's own GPU."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np
from simpy.events import Event, Timeout

from simcore.clock import Clock
from simcore.engine.execution import Execution
from simcore.engine.gpu import Gpu
from simcore.engine.sequence import Demand, KernelSequence
from simcore.hardware.specs import GpuSpec
from simcore.network.fluid import FixedNetwork


@dataclass(frozen=True)
class Holding:
    """Communication beside a kernel: ``num_sms`` from ``begin_ps`` to ``end_ps`` after the kernel's start."""

    begin_ps: int
    end_ps: int
    num_sms: int


def time_beside(gpu: GpuSpec, demand: Demand, alone_ps: int, holdings: Sequence[Holding]) -> int:
    """How long a kernel lasts beside ``holdings``, ps, on ``gpu``.

    SMs are held from when the engine grants them, so communication that begins while the kernel's blocks fill
    the GPU waits until some retire, as in a simulation.
    """
    clock = Clock()
    device = Gpu(clock, FixedNetwork(clock), num_sms=gpu.num_sms, hbm_bytes_per_s=gpu.hbm_bytes_per_s)
    sequence = KernelSequence.of([demand], np.array([alone_ps]), np.zeros(1, dtype=np.int64))
    running: list[Execution] = []
    for one in sorted(holdings, key=lambda holding: holding.begin_ps):
        clock.process(_communicate(clock, device, one))
    clock.process(_compute(device, sequence, running))
    clock.drain()
    (run,) = running
    return run.ends[0] if run.origin_ps is None else run.origin_ps + alone_ps


def _communicate(clock: Clock, gpu: Gpu, holding: Holding) -> Generator[Event, None, None]:
    begin = max(0, holding.begin_ps)
    if begin:
        yield Timeout(clock, begin)
    with gpu.sms.hold(min(gpu.num_sms, holding.num_sms)) as held:
        yield held
        if holding.end_ps > clock.now:
            yield Timeout(clock, holding.end_ps - clock.now)


def _compute(gpu: Gpu, sequence: KernelSequence, running: list[Execution]) -> Generator[Event, None, None]:
    run = gpu.execute(sequence)
    running.append(run)
    yield run
