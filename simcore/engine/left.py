"""What others leave of a GPU to its kernels: SMs, HBM bandwidth, and what each waits for others' writes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from simcore.elementary import plain_sum
from simcore.network.maxmin import share
from simcore.records import dataclass

if TYPE_CHECKING:
    from simcore.engine.execution import Execution
    from simcore.engine.sequence import Environment

_MOST: Final = 1024  # remembered per GPU model; flows that never repeat a rate must not fill the memory


@dataclass(frozen=True, eq=False, slots=True)
class Left:
    """What is left while others hold ``held`` SMs, and flows draw on HBM: ``sms``, and ``hbm_bytes_per_ps``.

    ``whole_bytes_per_ps`` is all of HBM, ``desired`` what each flow would draw with HBM to itself, ``most``
    the largest of these.  ``environment`` is what an only execution has of the GPU; None where no SM is left,
    or a kernel could slow a flow down through HBM.
    """

    held: int
    sms: int
    fence_ps: int
    hbm_bytes_per_ps: float
    whole_bytes_per_ps: float
    desired: tuple[float, ...]
    most: float
    environment: Environment | None

    def place(self, running: Sequence[Execution], waiting: int = 0) -> list[float]:
        """Give kernels under way the SMs but for ``waiting``, first come, first served; returns what each
        wishes of HBM, bytes/ps.
        """
        free, whole = self.sms - waiting, self.whole_bytes_per_ps
        for execution in running:
            free -= execution.take_sms(max(0, free), self.held, self.fence_ps)
        return [min(execution.hbm_wish, whole) for execution in running]

    def level(self, wishes: Sequence[float]) -> float:
        """What of HBM no flow gets more than where kernels wish for so much, bytes/ps; inf: all fit."""
        if not self.desired:
            return math.inf
        largest = max(self.most, *wishes)
        if largest * (len(self.desired) + len(wishes)) < 0.99 * self.whole_bytes_per_ps:
            return math.inf  # less than an equal part each, whatever rounding does
        return share(self.whole_bytes_per_ps, [*self.desired, *wishes])[0]

    def shares(self, wishes: Sequence[float]) -> list[float]:
        """What each kernel gets of HBM, bytes/ps."""
        if len(wishes) == 1:
            return [min(wishes[0], self.hbm_bytes_per_ps)]
        return share(self.hbm_bytes_per_ps, wishes)[1]

    def slows(self, level: float) -> bool:
        """Whether flows go slower at that level."""
        return self.most > level * (1.0 + 1e-12)


@dataclass(frozen=True, eq=False, slots=True)
class Whole:
    """All that a GPU has for kernels: ``alone`` is the environment of one that shares it with nobody.

    ``fence_ps``: what each kernel waits while data moves.
    """

    alone: Environment
    fence_ps: int
    _left: dict[tuple[int, tuple[tuple[float, float], ...]], Left] = field(default_factory=dict)

    @classmethod
    @lru_cache(maxsize=16)
    def of(cls, num_sms: int, hbm_bytes_per_s: float, fence_ps: int) -> Whole:
        """The one of a GPU model."""
        return cls((num_sms, hbm_bytes_per_s * 1e-12, 0), fence_ps)

    def left(self, held: int, draws: tuple[tuple[float, float], ...]) -> Left:
        """What is left while others hold ``held`` SMs, and draw so much on HBM, bytes/ps: (actual, desired)
        of each flow.
        """
        found = self._left.get((held, draws))
        if found is None:
            if len(self._left) >= _MOST:
                self._left.clear()
            found = self._left[held, draws] = self._found(held, draws)
        return found

    def _found(self, held: int, draws: tuple[tuple[float, float], ...]) -> Left:
        num_sms, hbm, _ = self.alone
        desired = tuple([wish for _, wish in draws])
        hbm_left = max(0.0, hbm - plain_sum(actual for actual, _ in draws))
        fence_ps, most = (self.fence_ps, max(desired)) if draws else (0, 0.0)
        left = Left(held, num_sms - held, fence_ps, hbm_left, hbm, desired, most, None)
        if held >= num_sms or left.slows(left.level([hbm])):
            return left
        environment = (left.sms, hbm_left, fence_ps) if held or draws else self.alone
        return Left(held, left.sms, fence_ps, hbm_left, hbm, desired, most, environment)
