"""Kernels of one stream being executed, one event each."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Protocol

from simcore.clock import Clock, Movable
from simcore.engine.kernel import RunningKernel

if TYPE_CHECKING:
    from simcore.engine.sequence import Demand, Environment, KernelSequence

NEVER: Final = 1 << 60  # ps; later than any time that is simulated


class Processor(Protocol):
    """A GPU as what it executes sees it; the methods are those of :class:`simcore.engine.gpu.Gpu`."""

    clock: Clock
    num_sms: int
    alone: Environment
    executions: list[Execution]

    def environment(self) -> Environment | None: ...  # noqa: D102
    def stretch(self, execution: Execution) -> float: ...  # noqa: D102
    def settle(self) -> None: ...  # noqa: D102
    def rerate(self) -> None: ...  # noqa: D102
    def sms_fell_free(self) -> None: ...  # noqa: D102
    def finished(self, execution: Execution) -> None: ...  # noqa: D102


class Execution(Movable):
    """Kernels of one stream being executed; fires when the last one has ended.

    ``starts`` and ``ends`` are the kernels' times.  Where ``origin_ps`` is set instead, they all had the GPU
    alone, one right after the other: kernel ``i`` from ``origin + before[i]`` to ``origin + after[i]`` of the
    sequence's timing alone.
    """

    kernel_type = RunningKernel

    def __init__(self, gpu: Processor, kernels: KernelSequence, launch_ps: int) -> None:
        super().__init__(gpu.clock)
        self._gpu = gpu
        self._kernels = kernels
        self._launch_base = launch_ps
        self.stream = 0  # on which the kernels are
        self.index = 0
        self.kernel: RunningKernel | None = None
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
        """Begin the kernel at ``index``."""
        gpu, kernels = self._gpu, self._kernels
        if self.index == kernels.num_kernels:
            gpu.finished(self)
            self.fire()
            return
        now = gpu.clock.now
        launched = self._launch_base + kernels.launch[self.index]
        if launched > now:
            self.set(launched)
            if len(gpu.executions) > 1:
                gpu.rerate()  # what this stream leaves unused until then
            return
        self._begin(now)
        gpu.rerate()

    def _begin(self, start: int) -> None:
        kernels, gpu = self._kernels, self._gpu
        self.kernel = self.kernel_type(gpu.num_sms, *kernels.demand[self.index])
        self.start_ps = self._since = start
        self._fence_ps = 0

    def due(self) -> None:
        """A kernel ended, a launch arrived, or blocks retired."""
        gpu = self._gpu
        if self.kernel is None:  # its launch has arrived
            gpu.settle()
            self.next_kernel()
            return
        if gpu.clock.now < self._end_ps:  # blocks retire and somebody waits for their SMs
            gpu.sms_fell_free()
            return
        gpu.settle()
        self.kernel = None
        self.starts.append(self.start_ps)
        self.ends.append(gpu.clock.now)
        self.index += 1
        gpu.sms_fell_free()
        self.next_kernel()

    # -- sharing ---------------------------------------------------------------------------------

    def settle(self) -> None:
        """Book progress up to now."""
        kernel = self.kernel
        if kernel is not None:
            now = self._gpu.clock.now
            kernel.advance(now - self._since, self._sms, self._sm_rate, self._hbm_rate)
            self._since = now

    def take_sms(self, free: int, held: int = 0, fence_ps: int = 0) -> int:
        """Place the current kernel on ``free`` SMs; returns how many it keeps from others.

        ``held``: those that communication holds, already taken from ``free``; some kernels lose more.
        ``fence_ps``: what a kernel that begins now waits for communication's writes.
        """
        kernel = self.kernel
        assert kernel is not None
        if self._since == self.start_ps and kernel.uses_sms:
            kernel.fixed_left += fence_ps - self._fence_ps
            self._fence_ps = fence_ps
        if kernel.lost > 1:
            free = max(0, free - (kernel.lost - 1) * held)
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
        if self._since == self.start_ps and gpu.environment() is gpu.alone:
            alone, i = self._kernels.alone, self.index
            self._end_ps = self.start_ps + alone.after[i] - alone.before[i]
        elif needed < math.inf:
            self._end_ps = self._since + round(kernel.fixed_left + needed)
        else:
            self._end_ps = NEVER
        wake = self._end_ps
        if retirements and self._sm_rate > 0.0 and kernel.placed:
            wake = min(
                wake, self._since + math.ceil(kernel.fixed_left + kernel.next_retirement() / self._sm_rate)
            )
        if wake < NEVER:
            self.set(wake)
        else:
            self.unset()
