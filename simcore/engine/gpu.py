"""A GPU as shared resources: an SM pool, HBM bandwidth and copy engines.

Note [How slowdown emerges]
Communication kernels hold SMs (:meth:`SmPool.hold`) and draw HBM bandwidth while their flow moves; compute
kernels run on the SMs that are left and on their max-min share of HBM.  Whenever a holder, a flow or a
kernel comes or goes, the kernels on this GPU are settled (progress so far is booked) and re-rated (new
speed, new completion time).  No factor is applied anywhere.

A kernel that begins while data moves lasts longer by ``fence_ps``: at its end the GPU waits for writes that
are on their way to peers (Note [Fences] of ``hardware/sm.py``).  What moves when it begins is taken for what
moves when it ends.

Who is placed first: a communication kernel takes SMs that are free, or that blocks of a running kernel
give back, before that kernel's next blocks do; a kernel that has not progressed yet has placed nothing.
Concurrent compute kernels take SMs in order of arrival, later ones the leftover.
"""

from __future__ import annotations

import math
from collections import defaultdict
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

import simpy
from simpy.events import Event
from simpy.resources import base

from simcore.engine.execution import Execution
from simcore.engine.left import Whole
from simcore.errors import InputError
from simcore.network.flow import OtherEnd

if TYPE_CHECKING:
    from collections.abc import Callable

    from simcore.clock import Clock
    from simcore.engine.execution import Processor
    from simcore.engine.left import Left
    from simcore.engine.sequence import Environment, KernelSequence
    from simcore.network.flow import Drawer, Network
    from simcore.network.link import Link


#: What others do to a GPU: take SMs or give them back, draw on HBM or no longer, and have kernels re-rated.
TAKEN, GIVEN_BACK, DRAWN, ENDED, RERATED = range(5)


class Sleeper(Protocol):
    """Somebody who answers for what a GPU does, while nothing seems to be under way on it.

    Told what is about to change, now, it either goes on with that or has the GPU be where it would be.
    """

    def change(
        self,
        kind: int,
        num_sms: int = 0,
        flow: Drawer | None = None,
        bytes_per_ps: float = 0.0,
        desired_bytes_per_ps: float = 0.0,
    ) -> None:
        """Others take or give back SMs, a flow draws so much from now on or nothing any more, or what ended
        before has kernels re-rated.
        """
        ...

    def touched(self, link: Link | None = None) -> None:
        """A flow of others is about to use a link, or something else is, that it cannot go on with."""
        ...


class Hold(base.Put["SmPool"]):
    """A request for SMs; happens when they are ``granted``.  As a context manager it gives them back."""

    def __init__(self, pool: SmPool, num_sms: int, purpose: str, *, granted: bool = False) -> None:
        self.num_sms = num_sms
        self.purpose = purpose
        if not granted:
            super().__init__(pool)
            return
        Event.__init__(self, pool.clock)  # there is nothing to wait for, and nobody to be told
        self.resource, self.proc = pool, pool.clock.active_process
        self.grant()

    def grant(self) -> None:
        """Resume the holder at once; whoever asks only now goes on without having waited."""
        self._ok = True
        self._value = None
        callbacks, self.callbacks = self.callbacks, None  # type: ignore[assignment]
        for callback in callbacks:
            callback(self)

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is GeneratorExit:  # the coroutine is thrown away, and its simulation with it
            return
        if self.processed:
            self.resource.release(self.num_sms, self.purpose)
        else:
            self.cancel()


class SmPool(base.BaseResource["Hold", "base.Get[SmPool]"]):
    """The SMs of one GPU.  ``with gpu.sms.hold(channels) as held: yield held`` is how a kernel takes some.

    Holds are granted in order.  A hold behind a kernel that fills the GPU waits until enough of that
    kernel's blocks retire.
    """

    def __init__(self, gpu: Gpu, num_sms: int) -> None:
        super().__init__(gpu.clock, num_sms)
        self.clock = gpu.clock
        self._gpu = gpu
        self.num_sms = num_sms
        self.held = 0
        self.held_for: dict[str, int] = defaultdict(int)  # SMs held, by purpose

    def hold(self, num_sms: int, purpose: str = "") -> Hold:
        """Ask for ``num_sms`` SMs, exclusively; ``purpose`` is the collective that wants them.

        InputError for more than there are.
        """
        if not 0 <= num_sms <= self.num_sms:
            raise InputError(f"a kernel cannot hold {num_sms} of {self.num_sms} SMs")
        return self.ask(num_sms, purpose) or Hold(self, num_sms, purpose, granted=True)

    def ask(self, num_sms: int, purpose: str) -> Hold | None:
        """Take so many SMs if they are free; who has to wait for them gets what happens then.

        Both are given back by :meth:`release`.
        """
        if self._gpu.sleeper is not None:
            self._gpu.sleeper.change(TAKEN, num_sms)
        if self.put_queue or not self.take(num_sms, purpose):
            return Hold(self, num_sms, purpose)
        return None

    def release(self, num_sms: int, purpose: str = "") -> None:
        """Give back SMs of a granted hold."""
        gpu = self._gpu
        if gpu.sleeper is not None:
            gpu.sleeper.change(GIVEN_BACK, num_sms)
        is_busy = bool(gpu.executions)
        if is_busy:
            gpu.settle()
        else:
            gpu.stale = False
        self.held -= num_sms
        self.held_for[purpose] -= num_sms
        if self.put_queue:
            self._trigger_put(None)
        if is_busy:
            gpu.rerate()

    def grant_waiting(self) -> None:
        """Grant holds that wait, in order, as far as SMs are free."""
        if self.put_queue:
            self._trigger_put(None)

    @property
    def waiting(self) -> int:
        """SMs that waiting holds ask for: blocks that retire leave them free."""
        return sum(hold.num_sms for hold in self.put_queue) if self.put_queue else 0

    def _trigger_put(self, get_event: base.Get[SmPool] | None) -> None:  # noqa: ARG002
        # SimPy's own loop leaves a granted request in the queue while its process already runs on.
        while self.put_queue and self._do_put(self.put_queue[0]):
            pass

    def _trigger_get(self, put_event: Hold | None) -> None:
        pass  # nobody gets

    def _do_put(self, event: Hold) -> bool:
        queue = self.put_queue
        assert queue[0] is event
        del queue[0]
        if not self.take(event.num_sms, event.purpose):
            queue.insert(0, event)
            self._gpu.rerate()  # waiting holds want to know when blocks retire
            return False
        event.grant()
        return True

    def take(self, num_sms: int, purpose: str) -> bool:
        """Take so many SMs if they are free now, for a hold."""
        gpu = self._gpu
        free = self.num_sms - self.held
        if gpu.executions:
            gpu.settle()
            free -= gpu.sms_in_use()
        if num_sms > free:
            return False
        self.held += num_sms
        self.held_for[purpose] += num_sms
        if gpu.executions:
            gpu.rerate()
        return True

    def _do_get(self, event: base.Get[SmPool]) -> bool:
        raise TypeError(f"{event!r}: an SM pool is held and released, there is nothing to get")


class Gpu:
    """One simulated GPU.  ``hbm_bytes_per_s`` is what its kernels share, ``execution`` what a sequence of
    them runs as, ``fence_ps`` what each waits while data moves.  A ``sleeper`` is told before anything on the
    GPU changes.  ``stale``: a flow has ended, and kernels have not been re-rated yet.
    """

    def __init__(
        self,
        clock: Clock,
        network: Network,
        *,
        num_sms: int,
        hbm_bytes_per_s: float,
        copy_engines: int = 1,
        execution: Callable[[Processor, KernelSequence, int], Execution] = Execution,
        fence_ps: int = 0,
    ) -> None:
        self.clock = clock
        self.network = network
        self.num_sms = num_sms
        self.hbm_bytes_per_s = hbm_bytes_per_s
        self.hbm_bytes_per_ps = hbm_bytes_per_s * 1e-12
        self.fence_ps = fence_ps
        self.sms = SmPool(self, num_sms)
        self.copy_engines = simpy.Resource(clock, copy_engines)
        self.executions: list[Execution] = []
        self.draws: dict[Drawer, tuple[float, float]] = {}  # HBM bytes/ps: actual, desired
        self._limited: dict[Drawer, float] = {}
        self._sharing = False
        self.stale = False
        self.sleeper: Sleeper | None = None
        self._execution = execution

    @property
    def fence_ps(self) -> int:
        """What each kernel waits from now on while data moves; whoever changes it changes a draw, too."""
        return self._whole.fence_ps

    @fence_ps.setter
    def fence_ps(self, fence_ps: int) -> None:
        self._whole = Whole.of(self.num_sms, self.hbm_bytes_per_s, fence_ps)
        self.alone: Environment = self._whole.alone

    def touched(self, link: Link) -> None:
        """See :class:`simcore.network.link.Observer`."""
        if self.sleeper is not None:
            self.sleeper.touched(link)

    def taken(self) -> tuple[int, tuple[tuple[float, float], ...]] | None:
        """What others have of the GPU, if nothing else is under way or wanted: SMs held, and the HBM bytes/ps
        (actual, desired) of each flow.
        """
        if self.executions or self.sms.put_queue or self._limited or self.sleeper is not None:
            return None
        return self.sms.held, tuple(self.draws.values())

    def environment(self) -> Environment | None:
        """(SMs, HBM bytes/ps, wait for writes) that the only execution has as long as nothing comes or goes.

        None while that is not so simple: another one, a hold that waits for blocks to retire, no SM left,
        or a flow that its kernels could slow down through HBM.
        """
        sms = self.sms
        if len(self.executions) > 1 or sms.put_queue or self._limited:
            return None
        return self._left().environment

    def execute(self, kernels: KernelSequence, launch_ps: int = 0, stream: int = 0) -> Execution:
        """Execute ``kernels`` one after the other; the result is an event and the record of times.

        ``launch_ps`` is when the first launch reaches the GPU (the others follow as the sequence says);
        ``stream`` decides between kernels that come at the same instant.
        """
        if self.sleeper is not None:
            self.sleeper.touched()
        if self.executions:
            self.settle()
        execution = self._execution(self, kernels, launch_ps)
        execution.stream = stream
        self.executions.append(execution)
        execution.next_kernel()
        return execution

    def sms_fell_free(self) -> None:
        """Blocks have retired: holds that wait may be granted."""
        self.sms.grant_waiting()

    def finished(self, execution: Execution) -> None:
        """``execution`` has no kernel left."""
        self.executions.remove(execution)
        if self.executions:
            self.settle()
            self.rerate()
        elif self._limited:
            self._limit_flows(math.inf)

    def draw_changed(self, flow: Drawer, bytes_per_ps: float, desired_bytes_per_ps: float) -> None:
        """See :class:`simcore.network.flow.Endpoint`."""
        if self.sleeper is not None:
            kind = DRAWN if desired_bytes_per_ps > 0.0 else RERATED
            self.sleeper.change(kind, 0, flow, bytes_per_ps, desired_bytes_per_ps)
        busy = bool(self.executions) and not self._sharing
        if busy:
            self.settle()
        if desired_bytes_per_ps > 0.0:
            self.draws[flow] = (bytes_per_ps, desired_bytes_per_ps)
        if busy:
            self.rerate()

    def draw_ended(self, flow: Drawer) -> None:
        """See :class:`simcore.network.flow.Endpoint`."""
        if self.sleeper is not None:
            self.sleeper.change(ENDED, 0, flow)
        if self.executions:
            self.settle()
            self.stale = True
        elif self.sleeper is not None:
            self.stale = True
        self.draws.pop(flow, None)
        if self._limited:
            self._limited.pop(flow, None)

    def refresh(self) -> None:
        """See :class:`simcore.network.flow.Endpoint`."""
        if self.stale:
            if self.sleeper is not None:
                self.sleeper.change(RERATED)
            self.rerate()

    # -- sharing ---------------------------------------------------------------------------------

    def running(self) -> list[Execution]:
        """Executions with a kernel under way, in the order in which these kernels came."""
        running = [one for one in self.executions if one.kernel is not None]
        if len(running) > 1:
            running.sort(key=attrgetter("start_ps", "stream"))
        return running

    def sms_in_use(self) -> int:
        """SMs that the running kernels' blocks keep from a communication kernel now."""
        return sum(execution.sms_in_use for execution in self.executions)

    def stretch(self, execution: Execution) -> float:  # noqa: ARG002
        """By how much a kernel is slower than its share of the GPU says: 1, since sharing says it all."""
        return 1.0

    def settle(self) -> None:
        """Book the progress of all kernels up to now, at the rates they had."""
        for execution in self.executions:
            execution.settle()

    def rerate(self) -> None:
        """Share SMs and HBM among the kernels now running and set their completion times."""
        self.stale = False
        running = self.running()
        if not running:
            if self._limited:
                self._limit_flows(math.inf)
            return
        waiting = self.sms.waiting
        left = self._left()
        wishes = left.place(running, waiting)
        level = left.level(wishes)
        if self._limited or level < math.inf:
            self._limit_flows(level)
            left = self._left()
        for execution, bytes_per_ps in zip(running, left.shares(wishes), strict=True):
            execution.set_speed(bytes_per_ps, retirements=waiting > 0)

    def _left(self) -> Left:
        return self._whole.left(self.sms.held, tuple(self.draws.values()))

    def _limit_flows(self, level: float) -> None:
        """Tell the network about flows that would take more than their fair share of HBM."""
        self._sharing = True
        try:
            for flow, (_, desired) in list(self.draws.items()):
                if isinstance(flow, OtherEnd):  # goes as fast as its flow
                    continue
                limit = level if desired > level * (1.0 + 1e-12) else None
                if limit != self._limited.get(flow):
                    if limit is None:
                        del self._limited[flow]
                        self.network.limit(flow, self, None)
                    else:
                        self._limited[flow] = limit
                        self.network.limit(flow, self, limit / flow.plan.hbm_bytes_per_byte)
        finally:
            self._sharing = False
