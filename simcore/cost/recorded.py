"""Replaying: every op lasts what a recording says, whatever runs beside it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from simcore.cost.demand import ORIGINS, Demands
from simcore.errors import InputError
from simcore.graph.kinds import is_priced
from simcore.graph.ops import OpKind, OpTable


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
