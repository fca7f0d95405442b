"""What nccl-tests reports of a collective: calls that follow each other in a loop, launched by a host.

Note [Loop of calls]
    nccl-tests launches a collective ``-n`` times (20 unless told), waits once, and divides.  Where every rank
    needs data of every other (all_reduce, all_gather, reduce_scatter, all_to_all), a call cannot begin before
    the last one has ended, and the loop shows what a call lasts alone.  A chain (broadcast, reduce) lets its
    first rank go on: hops and filling are paid once, the rest is hidden by the next call
    (Note [Chains] in :mod:`simcore.collectives.timing`).
    A thread that drives several GPUs (``-g``) launches one kernel after the other within a group: each takes
    a launch call, and an entry per channel that NCCL puts into the kernel's list of work
    (appendWorkElemColl, src/enqueue.cc).  The GPUs wait for the host where they are faster.
"""

from __future__ import annotations

import re
from typing import Final

from simcore.collectives import CollectivePlan
from simcore.hardware import GpuSpec
from simcore.records import dataclass
from simcore.units import PS_PER_S, PS_PER_US

#: nccl-tests, src/common.cu: how often it calls unless told (-n).
_CALLS: Final = 20
#: Host time of one channel's entry in the work list of one GPU.  8 H800, one thread, NCCL 2.18.3: 1, 2, 4, 8
#: and 16 channels take 25.6, 26.7, 29.6, 33.4 and 43.3 us per broadcast from 64 bytes to 512 KiB (public
#: GitHub file id 24836070500): 1.2 us per channel and group of 8, at 3.0 us a launch (the profile of the GPU
#: has 3.3, from a trace of another machine).
_WORK_ENTRY_S: Final = 0.15e-6
_PER_THREAD: Final = re.compile(r"(?<![\w-])-g\s*(\d+)\b")
_SAID_CALLS: Final = re.compile(r"(?<![\w-])-n\s*(\d+)\b|\biters\s+(\d+)\b")
#: A profiler times calls one by one.
_ONE_BY_ONE: Final = re.compile(r"profiler", re.IGNORECASE)


@dataclass(frozen=True)
class Loop:
    """How a row was measured: ``calls`` in a row, launched by threads that drive ``gpus_per_thread`` each."""

    calls: int = _CALLS
    gpus_per_thread: int = 1


#: nccl-tests' defaults.
ALONE_ON_A_THREAD: Final = Loop()


def loop_of(said: str) -> Loop:
    """The loop that a row's words speak of (``-g 8``, ``-n 100``); nccl-tests' defaults otherwise."""
    if _ONE_BY_ONE.search(said):
        return Loop(calls=1)
    calls, driven = _SAID_CALLS.search(said), _PER_THREAD.search(said)
    return Loop(
        calls=max(1, int(calls[1] or calls[2])) if calls else _CALLS,
        gpus_per_thread=max(1, int(driven[1])) if driven else 1,
    )


def reported_us(plan: CollectivePlan, gpu: GpuSpec, loop: Loop) -> float:
    """Microseconds per call that ``loop`` reports of a collective with this plan."""
    hidden_ps = plan.between_ps if plan.kind.root_chain else 0
    on_gpu_us = (plan.alone_ps - hidden_ps * (1 - 1 / loop.calls)) / PS_PER_US
    return max(on_gpu_us, host_us(plan.channels, gpu, loop))


def host_us(channels: int, gpu: GpuSpec, loop: Loop) -> float:
    """Microseconds that a thread needs to launch one collective on all its GPUs; 0 if it drives one.

    With a GPU of its own, a launch is a part of the start that the constants of collectives hold.
    """
    if loop.gpus_per_thread == 1:
        return 0.0
    launch_s = gpu.launch_overhead_s + channels * _WORK_ENTRY_S
    return loop.gpus_per_thread * launch_s * PS_PER_S / PS_PER_US
