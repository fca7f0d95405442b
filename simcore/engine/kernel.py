"""One compute kernel on a GPU: thread blocks in waves on the SMs it is given, bytes through HBM.

Pure arithmetic without SimPy.  Time on the SMs is counted in *SM time*: what the blocks would need if HBM
were infinite.  A kernel whose HBM share is too small progresses through its SM time more slowly; both
dimensions end together, so that alone it lasts the larger of the two.
"""

from __future__ import annotations

import math
from bisect import insort

from simcore.elementary import power

#: By half of the GPU's slots at work what all SMs have in common is used as by all.
_HALF = 0.5

_EMPTY = 1e-6  # ps of SM time, far below the clock's resolution: a block with less left is done


class RunningKernel:
    """State of one running kernel.  Times in ps (float inside a kernel), sizes in bytes.

    ``blocks == 0`` is the fluid limit: work spreads over the SMs that are free.  Otherwise equal blocks of
    ``wave_ps`` each are placed as slots fall free; a block that has been placed stays until it ends.
    ``uses_sms`` is False for copy-engine transfers, which only share HBM.  ``lost``: SMs that it cannot use
    for each that communication holds; 0: what its blocks take of an SM is not known, so it loses that one,
    and all of its waves last alike.

    ``side_by_side``: blocks of one kernel on an SM finish so many times more per time than one by itself as
    there are of them to this power: one block nearly fills an SM's units.  Recorded grids whose blocks come
    to share an SM that each had to itself take 1.7 to 1.8 times as long (docs/contention.md); 2 ** 0.8 =
    1.74.  Blocks of few warps wait for their loads and do not fill an SM: each waits as long as ``waiting``
    of them take to be served, so n take waiting + n.  ``in_common``: share of a block's time (while it is
    served) that goes as what all SMs have in common (L2, HBM, power) is used: a last wave of few blocks
    takes about 0.66 to 0.70 of a full one where grids were recorded.
    """

    side_by_side = 0.2
    in_common = 0.35

    __slots__ = (
        "bytes_left", "cohorts", "fixed_left", "fresh", "is_fluid", "lost", "num_sms", "occupancy", "placed",
        "sm_left", "unplaced", "uses_sms", "waiting", "wave_ps",
    )  # fmt: skip

    def __init__(
        self,
        num_sms: int,
        sm_ps: int,
        blocks: int,
        blocks_per_sm: int,
        hbm_bytes: float,
        fixed_ps: int,
        uses_sms: bool = True,
        lost: int = 0,
        waiting: float = 0.0,
    ) -> None:
        self.num_sms = num_sms
        self.fixed_left = float(fixed_ps)
        self.bytes_left = float(hbm_bytes)
        self.occupancy = blocks_per_sm
        self.uses_sms = uses_sms
        self.lost = lost
        self.waiting = waiting
        self.fresh = True
        self.unplaced = blocks if uses_sms and sm_ps > 0 else 0
        self.cohorts: list[tuple[float, int]] = []  # (SM time left, blocks), ascending time
        self.placed = 0  # blocks in all cohorts
        self.is_fluid = not self.unplaced  # the work spreads over any number of SMs at any time
        if self.is_fluid:
            self.wave_ps = 0.0
            self.sm_left = float(sm_ps)  # on all SMs
        else:
            slots = num_sms * blocks_per_sm
            full = math.ceil(blocks / slots) - 1
            self.wave_ps = 1.0
            self.wave_ps = sm_ps / (full + self._wave(blocks - full * slots, slots))
            self.sm_left = 0.0

    def copy(self) -> RunningKernel:
        """The same state, to go on in another way."""
        new = object.__new__(type(self))
        for name in self.__slots__:
            setattr(new, name, getattr(self, name))
        new.cohorts = self.cohorts.copy()
        return new

    @property
    def sms_in_use(self) -> int:
        """SMs that its placed blocks occupy.  A fluid kernel gives SMs up at once: 0."""
        return -(-self.placed // self.occupancy)

    def place(self, sms: int) -> None:
        """Give the kernel ``sms`` SMs in all: blocks that have not been placed fill what is free.

        A kernel that has not progressed yet has no blocks on the GPU: it starts over with ``sms``.
        """
        if self.is_fluid:
            return
        if self.fresh:
            self.unplaced += self.placed
            self.placed = 0
            self.cohorts.clear()
        self._fill(sms * self.occupancy)

    def _fill(self, slots: int) -> None:
        count = min(self.unplaced, slots - self.placed)
        if count > 0:
            self.unplaced -= count
            self.placed += count
            insort(self.cohorts, (self._wave(self.placed, slots), count))

    def _wave(self, placed: int, slots: int) -> float:
        """SM time of blocks that are placed while ``placed`` of so many slots are taken, all SMs alike."""
        occupancy, wave = self.occupancy, self.wave_ps
        if not self.lost:
            return wave
        half = _HALF * self.num_sms * occupancy
        common = 1.0 - self.in_common * (1.0 - placed / half) if placed < half else 1.0
        together = occupancy  # blocks on an SM
        if placed <= slots - slots // occupancy:
            together = math.ceil(placed * occupancy / slots)
        if self.waiting:
            return wave * ((self.waiting + together * common) / (self.waiting + occupancy))
        if together == occupancy:
            return wave * common
        return wave * common * power(together / occupancy, 1.0 - self.side_by_side)

    def sm_time_left(self, sms: int) -> float:
        """SM time until the last block ends if the kernel keeps ``sms`` SMs (inf with none)."""
        if not self.uses_sms:
            return self.sm_left
        if self.is_fluid:
            if self.sm_left <= 0.0:
                return 0.0
            return self.sm_left * (self.num_sms / sms) if sms > 0 else math.inf
        if not self.cohorts:
            return math.inf if self.unplaced else 0.0
        if not self.unplaced:
            return self.cohorts[-1][0]
        rounds, rest = divmod(self.unplaced, self.placed)
        end = self.cohorts[-1][0] + rounds * self.wave_ps
        running = self.placed
        for left, blocks in self.cohorts:  # the rest goes where slots fall free first
            if rest <= 0:
                break
            running += min(0, rest - blocks)
            end = max(end, left + rounds * self.wave_ps + self._wave(running, sms * self.occupancy))
            rest -= blocks
        return end

    def next_retirement(self) -> float:
        """SM time until blocks retire next (inf when none are placed)."""
        return self.cohorts[0][0] if self.cohorts else math.inf

    def advance(self, elapsed_ps: int, sms: int, sm_rate: float, hbm_bytes_per_ps: float) -> None:
        """Let ``elapsed_ps`` pass on ``sms`` SMs, at ``sm_rate`` <= 1 SM time per time."""
        if elapsed_ps <= 0:
            return
        work = float(elapsed_ps)
        if self.fixed_left > 0.0:
            spent = min(self.fixed_left, work)
            self.fixed_left -= spent
            work -= spent
            if work <= 0.0:
                return
        self.fresh = False
        self.bytes_left = max(0.0, self.bytes_left - work * hbm_bytes_per_ps)
        work *= sm_rate
        if self.is_fluid:
            speed = sms / self.num_sms if self.uses_sms else 1.0
            self.sm_left = max(0.0, self.sm_left - work * speed)
        else:
            self._retire(work, sms * self.occupancy)

    def _retire(self, work: float, max_slots: int) -> None:
        """Advance placed blocks by ``work`` SM time; slots that fall free take unplaced blocks."""
        cohorts = self.cohorts
        if 0 < self.placed <= max_slots and self.unplaced:  # skip rounds: each slot runs as many blocks
            rounds = min(int((work - cohorts[-1][0]) // self.wave_ps), self.unplaced // self.placed)
            if rounds > 0:
                self.unplaced -= rounds * self.placed
                work -= rounds * self.wave_ps
        while cohorts and cohorts[0][0] <= work + _EMPTY:
            step, retired = cohorts.pop(0)
            work = max(0.0, work - step)
            for i, (left, blocks) in enumerate(cohorts):
                cohorts[i] = (left - step, blocks)
            self.placed -= retired
            self._fill(max_slots)
        for i, (left, blocks) in enumerate(cohorts):
            cohorts[i] = (left - work, blocks)
