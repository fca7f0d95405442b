"""What a kernel asks of a GPU: the seam between cost models and the engine.

A cost model turns op columns into :class:`Demands`; the engine turns demands into time, alone or
together.  Nothing else about a kernel reaches the engine.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from simcore.errors import InputError
from simcore.graph.kinds import is_priced
from simcore.graph.ops import IntArray, OpKind, OpTable
from simcore.records import dataclass

#: Origins of an estimate, best first.  The last two become warnings of the run: a formula that was fitted to
#: other GPUs (Note [Beyond fitted kernels] of ``hardware/covered.py``), and one that was fitted to none.
ORIGINS = ("recorded", "measured", "fitted", "extrapolated", "roofline")


@dataclass(frozen=True)
class Demands:
    """Demand of each op on the GPU that runs it, columnar, one row per op-table row.

    Alone, a kernel lasts ``fixed_ps + max(sm_ps, bytes / HBM bandwidth)``.

    * ``sm_ps``: time that its thread blocks need on all SMs (waves x wave time, or the fluid limit).
    * ``blocks``: thread blocks, ``blocks_per_sm``: how many fit on one SM.  With ``a`` SMs free, blocks
      run in ``ceil(blocks / (a * blocks_per_sm))`` waves.  ``blocks == 0``: fluid limit (very many waves,
      or a persistent kernel with a dynamic tile scheduler): the work spreads evenly over the free SMs.
      A static persistent kernel has ``blocks == number of SMs`` and one block per SM.
    * ``hbm_bytes``: HBM traffic, as bytes at peak bandwidth (a cost model divides by the share of peak
      that it believes reachable).  ``fixed_ps``: start cost, not shared with anything.
    * ``copy_engine``: 1 for transfers on a copy engine (no SMs; ``sm_ps`` is then the transfer alone).
    * ``lost``: SMs that a kernel cannot use for each that communication holds (0: not known, so that one).
    * ``waiting``: for how many of its blocks' shares of HBM each waits for its loads (0: not known).
    * ``origin``: index into :data:`ORIGINS`.
    """

    sm_ps: IntArray
    blocks: IntArray
    blocks_per_sm: IntArray
    hbm_bytes: IntArray
    fixed_ps: IntArray
    copy_engine: IntArray
    origin: IntArray
    lost: IntArray
    waiting: npt.NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.sm_ps)

    def alone_ps(self, hbm_bytes_per_s: float) -> IntArray:
        """Time of each op on an idle GPU, ps, rounded to the nearest picosecond."""
        memory_ps = np.rint(self.hbm_bytes * (1e12 / hbm_bytes_per_s)).astype(np.int64)
        total: IntArray = self.fixed_ps + np.maximum(self.sm_ps, memory_ps)
        return total

    def take(self, rows: npt.NDArray[np.integer]) -> Demands:
        """The demands of ``rows``, in that order."""
        return Demands(*(getattr(self, spec.name)[rows] for spec in fields(self)))

    def scaled(self, factor: npt.NDArray[np.float64]) -> Demands:
        """Each kernel ``factor`` times as long: SM time, HBM bytes and start cost, rounded."""

        def stretch(column: IntArray) -> IntArray:
            return np.rint(column * factor).astype(np.int64)

        return replace(
            self,
            sm_ps=stretch(self.sm_ps),
            hbm_bytes=stretch(self.hbm_bytes),
            fixed_ps=stretch(self.fixed_ps),
        )

    @classmethod
    def zeros(cls, num_ops: int) -> Demands:
        """Demands of ``num_ops`` ops that need nothing (one block per SM, origin "recorded")."""
        names = [spec.name for spec in fields(cls) if spec.name != "waiting"]
        whole = {name: np.zeros(num_ops, dtype=np.int64) for name in names}
        whole["blocks_per_sm"] = np.ones(num_ops, dtype=np.int64)
        return cls(**whole, waiting=np.zeros(num_ops))


class CostModel(Protocol):
    """Anything that prices compute ops."""

    def demands(self, ops: OpTable, used: npt.NDArray[np.bool_] | None = None) -> Demands:
        """Demand of every op; rows that are not compute or memcpy get zeros."""
        ...


class RecordedCost:
    """Prices ops at their recorded time; implements ``CostModel``.

    A recorded duration already contains what sharing the GPU cost, so it is a fixed time that takes no SMs
    and no HBM from anybody.  A recorded EVENT_WAIT is the device's own gap before a kernel starts.
    """

    def demands(self, ops: OpTable, used: npt.NDArray[np.bool_] | None = None) -> Demands:
        """Recorded times as fixed times.  InputError for a kernel or copy without one."""
        demands = Demands.zeros(len(ops))
        priced = is_priced(ops.kind) | (ops.kind == OpKind.EVENT_WAIT)
        if used is not None:
            priced &= used
        missing = np.flatnonzero(priced & (ops.recorded_ps < 0) & (ops.kind != OpKind.EVENT_WAIT))
        if len(missing):
            raise InputError(f"op {ops.name[int(missing[0])]!r} has no recorded time to replay")
        demands.fixed_ps[priced] = np.maximum(0, ops.recorded_ps[priced])
        demands.copy_engine[ops.kind == OpKind.MEMCPY] = 1
        demands.origin[:] = ORIGINS.index("recorded")
        return demands
