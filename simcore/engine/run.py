"""A run of compute kernels on one stream, as one event while nothing disturbs it.

Note [Coalescing]
Kernels that have a constant share of the GPU (all of it, or what a communication leaves) follow one another
at known times, so a run of them is a single timer at its end.  When the share changes at time t, the run is
*split*: a binary search in the prefix sums of the kernels' times finds the one that is running at t, its
state is computed as if it had been simulated, and it gets an event of its own; the kernels after it are
coalesced again.  The arithmetic is the same in both modes, so ``coalesce=False`` gives the same times to
the picosecond.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import TYPE_CHECKING

import numpy as np

from simcore.clock import Movable
from simcore.engine.kernel import Kernel

if TYPE_CHECKING:
    from simcore.engine.gpu import Gpu
    from simcore.engine.sequence import Demand, Environment, KernelSequence, Timing

NEVER = 1 << 60  # ps; later than any time that is simulated


class Run(Movable):
    """Kernels of one stream being executed; fires when the last one has ended.

    ``origin_ps`` is set when the whole run had the GPU alone: kernel ``i`` then ran from ``origin +
    before[i]`` to ``origin + after[i]`` of the sequence's timing alone.  Otherwise ``starts``/``ends`` hold
    the times.
    """

    def __init__(self, gpu: Gpu, kernels: KernelSequence, launch_ps: int) -> None:
        super().__init__(gpu.clock)
        self._gpu = gpu
        self._kernels = kernels
        self._launch_base = launch_ps
        self._coalesced_from = -1  # index of the first kernel under the pending timer, or -1
        self._limited_starts: list[int] | None = None  # starts of coalesced kernels if launches limit them
        self.index = 0
        self.kernel: Kernel | None = None
        self.origin_ps: int | None = None
        self.starts: list[int] = []
        self.ends: list[int] = []

    @property
    def sms_in_use(self) -> int:
        """SMs that placed blocks of the current kernel occupy and cannot give back now."""
        kernel = self.kernel
        return 0 if kernel is None or kernel.fresh else kernel.sms_in_use

    @property
    def demand(self) -> Demand:
        """What the current kernel asks of the whole GPU."""
        return self._kernels.demand[self.index]

    @property
    def hbm_wish(self) -> float:
        """HBM bandwidth, bytes/ps, at which the current kernel is not held up by memory."""
        kernel = self.kernel
        assert kernel is not None
        if kernel.bytes_left <= 0.0 or self._sm_time == math.inf:
            return 0.0
        return kernel.bytes_left / self._sm_time if self._sm_time > 0.0 else math.inf

    # -- progress --------------------------------------------------------------------------------

    def next_kernel(self) -> None:
        """Begin the kernel at ``index`` (or all that are left, when nobody disturbs them)."""
        gpu, kernels = self._gpu, self._kernels
        if self.index == kernels.num_kernels:
            gpu.finished(self)
            self.fire()
            return
        if gpu.coalesce:
            environment = gpu.environment()
            if environment is not None:
                self._coalesce(environment)
                return
        now = gpu.clock.now
        launched = self._launch_base + kernels.launch[self.index]
        if launched > now:
            self.set(launched)
            if len(gpu.runs) > 1:
                gpu.rerate()  # what this stream leaves unused until then
            return
        self._begin(now)
        gpu.rerate()

    def _begin(self, start: int) -> None:
        kernels, gpu = self._kernels, self._gpu
        self.kernel = Kernel(gpu.num_sms, *kernels.demand[self.index])
        self._start = self._since = start

    def due(self) -> None:
        """A kernel (or all coalesced ones) ended, a launch arrived, or blocks retired."""
        gpu = self._gpu
        if self._coalesced_from >= 0:
            self._record_coalesced(self._kernels.num_kernels)
            gpu.finished(self)
            self.fire()
            return
        if self.kernel is None:  # its launch has arrived
            gpu.settle()
            self.next_kernel()
            return
        if gpu.clock.now < self._end_ps:  # blocks retire and somebody waits for their SMs
            gpu.sms._trigger_put()
            return
        gpu.settle()
        self.kernel = None
        self.starts.append(self._start)
        self.ends.append(gpu.clock.now)
        self.index += 1
        if gpu.sms.put_queue:
            gpu.sms._trigger_put()
        self.next_kernel()

    # -- coalescing ------------------------------------------------------------------------------

    def _coalesce(self, environment: Environment) -> None:
        """One timer for all kernels from ``index`` on."""
        gpu, kernels, i = self._gpu, self._kernels, self.index
        now = gpu.clock.now
        self._coalesced_from = i
        self._environment = environment
        timing = self._timing = kernels.alone if environment is gpu.alone else self._timing_in(environment)
        if now >= self._launch_base + timing.lag[i]:  # the host is ahead: kernels follow back to back
            self._limited_starts = None
            self._since = now - timing.before[i]
            self.set(self._since + timing.after[-1])
        else:
            before = np.asarray(timing.before[i:], dtype=np.int64)
            launch = np.asarray(kernels.launch[i:], dtype=np.int64)
            behind = np.maximum.accumulate(launch - before) + self._launch_base
            starts = before + np.maximum(behind, now - timing.before[i])
            self._limited_starts = starts.tolist()
            self.set(self._limited_starts[-1] + timing.after[-1] - timing.before[-1])

    def _timing_in(self, environment: Environment) -> Timing:
        """Times of the kernels with a constant share of the GPU (remembered on the sequence)."""
        timing = self._kernels.timings.get(environment)
        if timing is None:
            sms, hbm = environment
            durations = []
            for demand in self._kernels.demand:
                kernel = self.kernel = Kernel(self._gpu.num_sms, *demand)
                self.take_sms(sms)
                durations.append(round(kernel.fixed_left + self._book(min(self.hbm_wish, hbm))))
            self.kernel = None
            timing = self._kernels.remember(environment, durations)
        return timing

    def _record_coalesced(self, stop: int) -> None:
        """Kernels from the coalesced start up to ``stop`` have run as planned."""
        timing, first = self._timing, self._coalesced_from
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
        timing, gpu, first = self._timing, self._gpu, self._coalesced_from
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
        self._record_coalesced(current)
        self._coalesced_from = -1
        self.index = current
        if start > now:
            self.set(start)
            return
        self._begin(start)
        sms, hbm = self._environment
        self.take_sms(sms)
        self._book(min(self.hbm_wish, hbm))
        self.settle()

    # -- sharing ---------------------------------------------------------------------------------

    def settle(self) -> None:
        """Book progress up to now."""
        if self._coalesced_from >= 0:
            self._split()
            return
        kernel = self.kernel
        if kernel is not None:
            now = self._gpu.clock.now
            kernel.advance(now - self._since, self._sms, self._sm_rate, self._hbm_rate)
            self._since = now

    def take_sms(self, free: int) -> int:
        """Place the current kernel on ``free`` SMs; returns how many it keeps from others."""
        kernel = self.kernel
        assert kernel is not None
        kernel.place(free)
        self._sms = free
        self._sm_time = kernel.sm_time_left(free)
        if not kernel.uses_sms:
            return 0
        if kernel.is_fluid:
            return free if kernel.sm_left > 0.0 else 0
        return kernel.sms_in_use

    def _book(self, hbm_bytes_per_ps: float) -> float:
        """Rates with this share of HBM; returns the time that the kernel still needs at them."""
        kernel = self.kernel
        assert kernel is not None
        if kernel.bytes_left > 0.0:
            memory = kernel.bytes_left / hbm_bytes_per_ps if hbm_bytes_per_ps > 0.0 else math.inf
        else:
            memory = 0.0
        needed = max(self._sm_time, memory) * self._gpu.stretch(self)
        self._sm_rate = self._sm_time / needed if 0.0 < needed < math.inf else float(needed == 0.0)
        self._hbm_rate = kernel.bytes_left / needed if 0.0 < needed < math.inf else 0.0
        return needed

    def set_speed(self, hbm_bytes_per_ps: float, *, retirements: bool) -> None:
        """Go on with this share of HBM; ``retirements``: also wake when blocks retire."""
        kernel, gpu = self.kernel, self._gpu
        assert kernel is not None
        needed = self._book(hbm_bytes_per_ps)
        if self._since == self._start and gpu.environment() is gpu.alone:
            alone, i = self._kernels.alone, self.index
            self._end_ps = self._start + alone.after[i] - alone.before[i]
        elif needed < math.inf:
            self._end_ps = self._since + round(kernel.fixed_left + needed)
        else:
            self._end_ps = NEVER
        wake = self._end_ps
        if retirements and self._sm_rate > 0.0 and not kernel.is_fluid:
            wake = min(
                wake, self._since + math.ceil(kernel.fixed_left + kernel.next_retirement() / self._sm_rate)
            )
        if wake < NEVER:
            self.set(wake)
        else:
            self.unset()
