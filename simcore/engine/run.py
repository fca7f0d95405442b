"""A run of compute kernels on one stream, as one event while nothing disturbs it.

Note [Coalescing]
Undisturbed kernels follow one another at known times, so a run on a quiet GPU is a single timer at its end.
When something else takes SMs or HBM at time t, the run is *split*: a binary search in the prefix sums of
its kernels' times finds the kernel that is running at t, its state is computed as if it had been simulated,
and kernels get an event each until the GPU is quiet again.  The arithmetic is the same in both modes, so
``coalesce=False`` gives the same times to the picosecond.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import TYPE_CHECKING

import numpy as np

from simcore.clock import Signal, Timer
from simcore.engine.kernel import Kernel

if TYPE_CHECKING:
    from simcore.engine.gpu import Gpu
    from simcore.engine.tape import Item


class Run(Signal):
    """The kernels of one tape item being executed; fires when the last one has ended.

    ``origin_ps`` is set when the whole run was undisturbed: kernel ``i`` then ran from
    ``origin + item.before[i]`` to ``origin + item.after[i]``.  Otherwise ``starts``/``ends`` hold the times.
    """

    __slots__ = (
        "_coalesced_from", "_end_ps", "_gpu", "_hbm_rate", "_item", "_launch_base", "_limited_starts", "_since",
        "_sm_rate", "_sm_time", "_sms", "_start", "_timer", "ends", "index", "kernel", "origin_ps", "starts",
    )  # fmt: skip

    def __init__(self, gpu: Gpu, item: Item, launch_base_ps: int) -> None:
        super().__init__(gpu.clock)
        self._gpu = gpu
        self._item = item
        self._launch_base = launch_base_ps
        self._timer = Timer(gpu.clock, self._timeout)
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
        gpu, item = self._gpu, self._item
        if self.index == item.num_ops:
            gpu.finished(self)
            self.fire()
            return
        if gpu.coalesce and gpu.is_quiet:
            self._coalesce()
            return
        now = gpu.clock.now
        launched = self._launch_base + item.launch[self.index]
        if launched > now:
            self._timer.set(launched)
            if len(gpu.runs) > 1:
                gpu.rerate()  # what this stream leaves unused until then
            return
        self._begin(now)
        gpu.rerate()

    def _begin(self, start: int) -> None:
        item, gpu = self._item, self._gpu
        self.kernel = Kernel(gpu.num_sms, *item.demand[self.index])
        self._start = self._since = start

    def _timeout(self) -> None:
        gpu = self._gpu
        if self._coalesced_from >= 0:
            self._record_coalesced(self._item.num_ops)
            self.index = self._item.num_ops
            self._coalesced_from = -1
        elif self.kernel is None:  # its launch has arrived
            gpu.settle()
            self.next_kernel()
            return
        elif gpu.clock.now < self._end_ps:  # blocks retire and somebody waits for their SMs
            gpu.sms._trigger_put(None)
            return
        else:
            gpu.settle()
            self.kernel = None
            self.starts.append(self._start)
            self.ends.append(gpu.clock.now)
            self.index += 1
            if gpu.sms.put_queue:
                gpu.sms._trigger_put(None)
        self.next_kernel()

    # -- coalescing ------------------------------------------------------------------------------

    def _coalesce(self) -> None:
        """One timer for all kernels from ``index`` on."""
        item, now, i = self._item, self._gpu.clock.now, self.index
        self._coalesced_from = i
        if now >= self._launch_base + item.lag[i]:  # the host is ahead: kernels follow back to back
            self._limited_starts = None
            self._since = now - item.before[i]
            self._timer.set(self._since + item.after[-1])
            return
        before = np.asarray(item.before[i:], dtype=np.int64)
        launch = np.asarray(item.launch[i:], dtype=np.int64)
        behind = np.maximum.accumulate(launch - before) + self._launch_base
        starts = before + np.maximum(behind, now - item.before[i])
        self._limited_starts = starts.tolist()
        self._timer.set(self._limited_starts[-1] + item.after[-1] - item.before[-1])

    def _record_coalesced(self, stop: int) -> None:
        """Kernels from the coalesced start up to ``stop`` have run as planned."""
        item, first = self._item, self._coalesced_from
        if self._limited_starts is not None:
            starts = self._limited_starts[: stop - first]
            alone = zip(item.after[first:stop], item.before[first:stop], strict=True)
            self.starts += starts
            self.ends += [start + after - before for start, (after, before) in zip(starts, alone, strict=True)]
        elif first == 0 and stop == item.num_ops:
            self.origin_ps = self._since
        else:
            self.starts += [self._since + offset for offset in item.before[first:stop]]
            self.ends += [self._since + offset for offset in item.after[first:stop]]

    def _split(self) -> None:
        """Something happens now inside the coalesced kernels: find the one that is running."""
        item, gpu, first = self._item, self._gpu, self._coalesced_from
        now = gpu.clock.now
        if self._limited_starts is None:
            current = bisect_right(item.after, now - self._since, lo=first)
            start = self._since + item.before[current] if current < item.num_ops else now
        else:
            current = first + max(0, bisect_right(self._limited_starts, now) - 1)
            start = self._limited_starts[current - first]
            if start + item.after[current] - item.before[current] <= now:
                current += 1
                start = self._limited_starts[current - first] if current < item.num_ops else now
        if current == item.num_ops:
            return  # the timer is due now: leave it
        self._record_coalesced(current)
        self._coalesced_from = -1
        self.index = current
        if start > now:
            self._timer.set(start)
            return
        self._begin(start)
        self.take_sms(gpu.num_sms)
        self._book(min(self.hbm_wish, gpu.hbm_bytes_per_ps))
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
        needed = max(self._sm_time, memory)
        self._sm_rate = self._sm_time / needed if 0.0 < needed < math.inf else float(needed == 0.0)
        self._hbm_rate = kernel.bytes_left / needed if 0.0 < needed < math.inf else 0.0
        return needed

    def set_speed(self, hbm_bytes_per_ps: float, *, retirements: bool) -> None:
        """Go on with this share of HBM; ``retirements``: also wake when blocks retire."""
        kernel, gpu = self.kernel, self._gpu
        assert kernel is not None
        needed = self._book(hbm_bytes_per_ps)
        if kernel.fresh and kernel.fixed_left == self._item.demand[self.index][4] and gpu.is_quiet:
            item, i = self._item, self.index
            self._end_ps = self._since + item.after[i] - item.before[i]
        elif needed < math.inf:
            self._end_ps = self._since + round(kernel.fixed_left + needed)
        else:
            self._end_ps = 1 << 62
        wake = self._end_ps
        if retirements and self._sm_rate > 0.0 and not kernel.is_fluid:
            wake = min(wake, self._since + math.ceil(kernel.fixed_left + kernel.next_retirement() / self._sm_rate))
        if wake < 1 << 62:
            self._timer.set(wake)
        else:
            self._timer.cancel()
