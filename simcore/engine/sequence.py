"""Kernels that one stream plays one after the other, with their times remembered per share of the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from itertools import accumulate

from simcore.records import dataclass

Demand = tuple[int, int, int, int, int, bool, int, float]  # arguments of RunningKernel after num_sms
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
    def of(cls, durations: Sequence[int], launch: Sequence[int]) -> Timing:
        """From the kernels' durations and when their launches reach the GPU, ps.

        Sequences are short: arrays would cost more than they save.
        """
        after = list(accumulate(durations))
        before = [0, *after][:-1]
        late = accumulate([there - begin for there, begin in zip(launch, before, strict=True)][::-1], max)
        lag = [most + begin for most, begin in zip(late, reversed(before), strict=True)]
        return cls(before, after, lag[::-1])


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
    def of(cls, demand: list[Demand], alone_ps: Sequence[int], launch: list[int]) -> KernelSequence:
        """A sequence of kernels whose times alone are ``alone_ps``."""
        return cls(len(demand), demand, launch, Timing.of(alone_ps, launch))

    def remember(self, environment: Environment, durations: list[int]) -> Timing:
        """Keep the kernels' durations with that part of the GPU."""
        if len(self.timings) >= _MAX_TIMINGS:
            self.timings.clear()
        timing = self.timings[environment] = Timing.of(durations, self.launch)
        return timing
