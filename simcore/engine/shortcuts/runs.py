"""Kernels that follow one another undisturbed, as one event.

Note [Runs of kernels]
    Kernels that have a constant share of the GPU (all of it, or what a communication leaves) follow one
    another at known times, so that a run of them is a single timer at its end.  When the share changes at
    time t, the run is *split*: a binary search in the prefix sums of the kernels' times finds the one that is
    running at t, its state is computed as if it had been simulated, and it gets an event of its own; the
    kernels after it become a run again.  The arithmetic is the same kernel by kernel, and so are the times.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import TYPE_CHECKING

from simcore.engine.execution import NEVER, Execution
from simcore.records import dataclass

if TYPE_CHECKING:
    from simcore.engine.execution import Processor
    from simcore.engine.sequence import Environment, KernelSequence, Timing


@dataclass
class Runs:
    """Executes kernels in runs, and counts those that were no event of their own."""

    num_ops: int = 0

    def execute(self, gpu: Processor, kernels: KernelSequence, launch_ps: int) -> Execution:
        """See :class:`simcore.engine.gpu.Gpu`."""
        run = Run(gpu, kernels, launch_ps)
        run.book = self
        return run


class Run(Execution):
    """Kernels under one timer as long as their share of the GPU is constant."""

    book: Runs
    _first = -1  # of the kernels under the pending timer, -1: none are
    _limited_starts: list[int] | None = None  # their starts where launches hold them up

    def next_kernel(self) -> None:
        """Begin all kernels that are left, when nobody disturbs them."""
        if self.index < self._kernels.num_kernels:
            environment = self._gpu.environment()
            if environment is not None and (timing := self._timing_in(environment)) is not None:
                self._begin_run(environment, timing)
                return
        super().next_kernel()

    def due(self) -> None:
        """The last kernel of the run has ended; else as kernel by kernel."""
        if self._first < 0:
            super().due()
            return
        self._record_run(self._kernels.num_kernels)
        self._gpu.finished(self)
        self.fire()

    def settle(self) -> None:
        """Book progress up to now: the share of the GPU is about to change."""
        if self._first >= 0:
            self._split()
        else:
            super().settle()

    def _begin_run(self, environment: Environment, timing: Timing) -> None:
        """One timer for all kernels from ``index`` on."""
        now, i = self._gpu.clock.now, self.index
        self._first = i
        self._environment = environment
        self._timing = timing
        self._limited_starts, end_ps = self._planned(i, now, timing)
        if self._limited_starts is None:
            self._since = now - timing.before[i]
        self.set(end_ps)

    def _planned(self, i: int, now: int, timing: Timing) -> tuple[list[int] | None, int]:
        """When all kernels from ``i`` on are over that begin now in a constant share of the GPU.

        Also when each of them starts, where launches hold them up.
        """
        if now >= self._launch_base + timing.lag[i]:  # the host is ahead: kernels follow back to back
            return None, now - timing.before[i] + timing.after[-1]
        base, behind = self._launch_base, now - timing.before[i]
        starts = []
        for before, launch in zip(timing.before[i:], self._kernels.launch[i:], strict=True):
            behind = max(behind, base + launch - before)
            starts.append(before + behind)
        return starts, starts[-1] + timing.after[-1] - timing.before[-1]

    def end_ps(self) -> int:
        """When the last kernel ends if the share of the GPU stays as it is; :data:`NEVER` where it cannot be
        said.
        """
        if self._first >= 0:
            return self.due_ps
        i, end_ps = self.index, self.due_ps
        if self.kernel is not None:
            i, end_ps = i + 1, self._end_ps
        if i == self._kernels.num_kernels or end_ps >= NEVER:
            return end_ps
        environment = self._gpu.environment()
        timing = self._timing_in(environment) if environment is not None else None
        return NEVER if timing is None else self._planned(i, end_ps, timing)[1]

    def _timing_in(self, environment: Environment) -> Timing | None:
        """Times of the kernels with a constant share of the GPU (remembered on the sequence); None where one
        would have no SM.
        """
        gpu, kernels = self._gpu, self._kernels
        if environment is gpu.alone:
            return kernels.alone
        timing = kernels.timings.get(environment)
        if timing is None:
            durations = Run(gpu, kernels, 0).durations(environment)
            if NEVER in durations:
                return None
            timing = kernels.remember(environment, durations)
        return timing

    def durations(self, environment: Environment) -> list[int]:
        """What each kernel takes with a constant share of the GPU, ps; :data:`NEVER` for one that has no SM.
        For an execution that does nothing else.
        """
        found = []
        sms, hbm, fence_ps = environment
        for number in range(self._kernels.num_kernels):
            self.index = number
            self._begin(0)
            self.take_sms(sms, self._gpu.num_sms - sms, fence_ps)
            needed = self._book(min(self.hbm_wish, hbm))
            assert self.kernel is not None
            found.append(round(self.kernel.fixed_left + needed) if needed < math.inf else NEVER)
        return found

    def _record_run(self, stop: int) -> None:
        """Kernels of the run up to ``stop`` have run as planned."""
        timing, first = self._timing, self._first
        self.book.num_ops += stop - first
        if self._limited_starts is not None:
            starts = self._limited_starts[: stop - first]
            alone = zip(timing.after[first:stop], timing.before[first:stop], strict=True)
            self.starts += starts
            self.ends += [
                start + after - before for start, (after, before) in zip(starts, alone, strict=True)
            ]
        elif first == 0 and stop == self._kernels.num_kernels and timing is self._kernels.alone:
            self.origin_ps = self._since
        else:
            self.starts += [self._since + offset for offset in timing.before[first:stop]]
            self.ends += [self._since + offset for offset in timing.after[first:stop]]

    def _split(self) -> None:
        """The share of the GPU changes now: find the kernel that is running."""
        timing, gpu, first = self._timing, self._gpu, self._first
        now, num_ops = gpu.clock.now, self._kernels.num_kernels
        if self._limited_starts is None:
            current = bisect_right(timing.after, now - self._since, lo=first)
            start = self._since + timing.before[current] if current < num_ops else now
        else:
            current = first + max(0, bisect_right(self._limited_starts, now) - 1)
            start = self._limited_starts[current - first]
            if start + timing.after[current] - timing.before[current] <= now:
                current += 1
                start = self._limited_starts[current - first] if current < num_ops else now
        if current == num_ops:
            return  # the timer is due now: leave it
        self._record_run(current)
        self._first = -1
        self.index = current
        if start > now:
            self.set(start)
            return
        self._begin(start)
        sms, hbm, fence_ps = self._environment
        self.take_sms(sms, self._gpu.num_sms - sms, fence_ps)
        self._book(min(self.hbm_wish, hbm))
        super().settle()
