"""A GPU on which a learned function says how communication slows kernels, instead of shared resources."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from simcore.engine.gpu import Gpu
from simcore.interference import Neighbours
from simcore.interference.features import EXCHANGES
from simcore.network.maxmin import share

if TYPE_CHECKING:
    from simcore.clock import Clock
    from simcore.engine.execution import Execution
    from simcore.engine.sequence import Environment
    from simcore.interference import LearnedInterference
    from simcore.network.flow import Network


class LearnedGpu(Gpu):
    """As :class:`Gpu`, but communication takes nothing: kernels beside it run slower by what was learned.

    Compute kernels still share SMs and HBM among each other.  Communication starts at once, and kernels do
    not slow its flows: recordings of kernels say nothing of either.
    """

    def __init__(self, clock: Clock, network: Network, learned: LearnedInterference, **sizes: Any) -> None:
        super().__init__(clock, network, **sizes)
        self._learned = learned

    def environment(self) -> Environment | None:
        """The whole GPU, as long as nothing else computes and nobody communicates."""
        if len(self.executions) > 1 or self.sms.held or self.sms.put_queue:
            return None
        return self.alone

    def sms_in_use(self) -> int:
        """None: recorded times hold the wait for blocks to retire, if there was one."""
        return 0

    def rerate(self) -> None:
        """Share the GPU among the kernels now running, as if nobody communicated."""
        self.stale = False
        running = self.running()
        if not running:
            return
        free = self.num_sms
        for execution in running:
            free -= execution.take_sms(max(0, free))
        wishes = [min(one.hbm_wish, self.hbm_bytes_per_ps) for one in running]
        _, shares = share(self.hbm_bytes_per_ps, wishes)
        for execution, bytes_per_ps in zip(running, shares, strict=True):
            execution.set_speed(bytes_per_ps, retirements=False)

    def stretch(self, execution: Execution) -> float:
        """What was learned of kernels like this one beside what holds SMs now."""
        beside = Neighbours(
            self.sms.held, any(self.sms.held_for.get(collective, 0) > 0 for collective in EXCHANGES)
        )
        sm_ps, blocks, blocks_per_sm, hbm_bytes, fixed_ps, uses_sms, *_ = execution.demand
        if not uses_sms or not beside.num_sms:
            return 1.0
        rate = self.hbm_bytes_per_ps
        return self._learned.slowdown(
            sm_ps=sm_ps, hbm_ps=hbm_bytes / rate if rate > 0.0 else math.inf, fixed_ps=fixed_ps,
            blocks=blocks, blocks_per_sm=blocks_per_sm, num_sms=self.num_sms, beside=beside,
        )  # fmt: skip
