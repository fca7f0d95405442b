"""Host threads of a recording: which hand over to each other, and which launch beside the others.

A forward thread sits in ``backward()`` while autograd's thread launches: their calls alternate in long runs
and never overlap, so together they are one thread.  A thread that prefetches data or serves another stream
makes calls during the others' calls; it is a thread of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simcore.graph.ops import IntArray
from workloads.imports.rank_ops import RankOps

_FEW = 3  # calls of two threads that overlap by chance: clocks of threads are not read at one time
_SHARE = 0.01


@dataclass(frozen=True)
class Threads:
    """The number by recorded thread of what counts as one thread: 0 is that with the most launches.

    Threads that launch nothing belong to it.
    """

    numbers: dict[int, int]

    def of(self, thread: int) -> int:
        """The number of a recorded thread."""
        return self.numbers.get(thread, 0)

    @property
    def count(self) -> int:
        """Threads that launch independently of each other."""
        return 1 + max(self.numbers.values(), default=0)


def host_threads(ops: RankOps) -> Threads:
    """Join threads whose calls hardly overlap, beginning with those that launch most."""
    calls = ops.trace.calls
    launched = np.unique(ops.call[ops.call >= 0])
    names, counts = np.unique(calls.thread[launched], return_counts=True)
    if len(names) < 2:
        return Threads({int(name): 0 for name in names})
    spans = {int(name): _spans(ops, int(name)) for name in names}
    groups: list[list[int]] = []
    for name in names[np.argsort(-counts, kind="stable")].tolist():
        fits = (group for group in groups if not any(_beside(spans[name], spans[other]) for other in group))
        group = next(fits, None)
        if group is None:
            groups.append([name])
        else:
            group.append(name)
    return Threads({name: number for number, group in enumerate(groups) for name in group})


def _spans(ops: RankOps, thread: int) -> tuple[IntArray, IntArray]:
    """Starts and ends of a thread's calls; of nested ones the outer."""
    calls = ops.trace.calls
    mine = np.flatnonzero(calls.thread == thread)
    start, end = calls.start_ps[mine], calls.end_ps[mine]
    outer = np.ones(len(mine), dtype=np.bool_)
    outer[1:] = start[1:] >= np.maximum.accumulate(end)[:-1]
    return start[outer], end[outer]


def _beside(one: tuple[IntArray, IntArray], other: tuple[IntArray, IntArray]) -> bool:
    """Whether calls of two threads overlap more than by chance."""
    (start, end), (others_start, others_end) = one, other
    overlapping = np.searchsorted(others_start, end) - np.searchsorted(others_end, start, side="right")
    count = int((overlapping > 0).sum())
    return count > max(_FEW, _SHARE * min(len(start), len(others_start)))
