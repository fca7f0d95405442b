"""Kernels that one stream plays one after the other, with their times remembered per share of the GPU."""

from __future__ import annotations

from dataclasses import field

import numpy as np

from simcore.graph.ops import IntArray
from simcore.records import dataclass

Demand = tuple[int, int, int, int, int, bool, int]  # arguments of RunningKernel after num_sms
Environment = tuple[int, float, int]  # SMs, HBM bytes/ps, what each kernel waits for others' writes, ps

_MAX_TIMINGS = 256  # remembered per sequence; flows that never repeat a rate must not fill the memory


@dataclass(frozen=True, slots=True)
class Timing:
    """Kernel ``i`` lasts from ``before[i]`` to ``after[i]``, ps after the sequence began without gaps.

    ``lag[i]`` is how long after the sequence's first launch kernels from ``i`` on are not held up by
    launches.
    """

    before: list[int]
    after: list[int]
    lag: list[int]

    @classmethod
    def of(cls, durations: IntArray, launch: IntArray) -> Timing:
        """From the kernels' durations and when their launches reach the GPU, ps."""
        after = np.cumsum(durations)
        before = after - durations
        lag = np.maximum.accumulate((launch - before)[::-1])[::-1] + before
        return cls(before.tolist(), after.tolist(), lag.tolist())


@dataclass(frozen=True, eq=False, slots=True)
class KernelSequence:
    """What a GPU executes.  ``demand[i]`` are kernel ``i``'s arguments, ``launch[i]`` is when its launch
    reaches the GPU after the first one's, ps; ``alone`` are the times with the GPU to itself.
    """

    num_kernels: int
    demand: list[Demand]
    launch: list[int]
    alone: Timing
    timings: dict[Environment, Timing] = field(default_factory=dict)

    @classmethod
    def of(cls, demand: list[Demand], alone_ps: IntArray, launch: IntArray) -> KernelSequence:
        """A sequence of kernels whose times alone are ``alone_ps``."""
        return cls(len(demand), demand, launch.tolist(), Timing.of(alone_ps, launch))

    def remember(self, environment: Environment, durations: list[int]) -> Timing:
        """Keep the kernels' durations with that part of the GPU."""
        if len(self.timings) >= _MAX_TIMINGS:
            self.timings.clear()
        timing = Timing.of(np.array(durations, dtype=np.int64), np.array(self.launch, dtype=np.int64))
        self.timings[environment] = timing
        return timing
