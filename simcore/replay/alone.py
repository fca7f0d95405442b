"""Recorded kernels as demands on a GPU: how long each lasts alone, and what it then shares with others.

A recorded duration contains what the kernel shared its GPU with.  A kernel that nothing overlapped is its own
time alone; one that only communication overlapped takes the median of the same kernels (name and grid) that
nothing overlapped; any other keeps its recorded duration, whatever runs beside it.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import numpy.typing as npt

from simcore.cost.demand import Demands
from simcore.cost.recorded import RecordedCost
from simcore.graph.ops import IntArray, OpTable
from simcore.replay.categories import CATEGORIES, categories
from simcore.units import PS_PER_S
from workloads.imports import ImportedJob
from workloads.imports.recorded import BoolArray, RecordedOps

#: Kernels limited by their thread blocks' arithmetic; the others stream HBM.
_COMPUTE_BOUND = ("gemm/conv", "attention")


def duration_alone(ops: RecordedOps, simulated: BoolArray) -> tuple[IntArray, BoolArray]:
    """(time alone, whether it is known) of each op, ps; where it is not, the recorded duration.

    ``simulated`` marks the communication that a network decides about: what other communication did to a
    kernel is in its duration, and stays.
    """
    length = ops.end_ps - ops.start_ps
    kernel = ops.is_kernel & ~ops.is_comm
    free = kernel & ~_overlapped(ops, np.ones(len(ops), dtype=np.bool_))
    by_comm = kernel & ~free & ~_overlapped(ops, ~simulated)
    samples: dict[tuple[int, int], list[int]] = defaultdict(list)
    for op in np.flatnonzero(free).tolist():
        samples[int(ops.name.codes[op]), int(ops.blocks[op])].append(int(length[op]))
    alone, known = length.copy(), free.copy()
    for op in np.flatnonzero(by_comm).tolist():
        found = samples.get((int(ops.name.codes[op]), int(ops.blocks[op])))
        if found:
            alone[op] = min(int(length[op]), int(np.median(found)))
            known[op] = True
    return alone, known


def _overlapped(ops: RecordedOps, by: BoolArray) -> BoolArray:
    """Whether an op ran beside one of ``by`` on another stream.  Ops are sorted by start."""
    found = np.zeros(len(ops), dtype=np.bool_)
    begins = ops.start_ps[by]
    reach = np.maximum.accumulate(ops.end_ps[by]) if by.any() else begins
    numbers = np.flatnonzero(by)
    place = np.searchsorted(begins, ops.end_ps)  # those that began before an op ended
    for op in range(len(ops)):
        at = int(place[op]) - 1
        while at >= 0 and reach[at] > ops.start_ps[op]:
            if numbers[at] != op and ops.end_ps[numbers[at]] > ops.start_ps[op]:
                found[op] = True
                break
            at -= 1
    return found


class SharedGpu:
    """Prices recorded kernels so that communication beside them matters; implements ``CostModel``.

    A compute-bound kernel (GEMM, convolution, attention) is SM time in its recorded thread blocks, any other
    HBM traffic at the GPU's full rate.  ``predicted`` (rows, demands) replaces what is recorded.
    """

    def __init__(
        self,
        job: ImportedJob,
        row_of: list[IntArray],
        simulated: list[BoolArray],
        hbm_bytes_per_s: float,
        predicted: tuple[IntArray, Demands] | None = None,
    ) -> None:
        self._job = job
        self._row_of = row_of
        self._simulated = simulated
        self._hbm_bytes_per_s = hbm_bytes_per_s
        self._predicted = predicted

    def demands(self, ops: OpTable, used: npt.NDArray[np.bool_] | None = None) -> Demands:
        """As :class:`RecordedCost`, with demands of kernels whose time alone is known."""
        demands = RecordedCost().demands(ops, used)
        bound = [CATEGORIES.index(name) for name in _COMPUTE_BOUND]
        for rank, row, simulated in zip(self._job.ranks, self._row_of, self._simulated, strict=True):
            recorded = rank.recorded
            alone, known = duration_alone(recorded, simulated)
            by_sms = known & np.isin(categories(recorded), bound)
            by_hbm = known & ~by_sms
            demands.fixed_ps[row[known]] = 0
            demands.sm_ps[row[by_sms]] = alone[by_sms]
            gridded = by_sms & (recorded.blocks_per_sm > 0)
            demands.blocks[row[gridded]] = recorded.blocks[gridded]
            demands.blocks_per_sm[row[gridded]] = recorded.blocks_per_sm[gridded].astype(np.int64)
            moved = alone[by_hbm].astype(np.float64) * (self._hbm_bytes_per_s / PS_PER_S)
            demands.hbm_bytes[row[by_hbm]] = np.rint(moved).astype(np.int64)
        if self._predicted is not None:
            rows, found = self._predicted
            for name in ("sm_ps", "blocks", "blocks_per_sm", "hbm_bytes", "fixed_ps", "origin"):
                getattr(demands, name)[rows] = getattr(found, name)
        return demands
