"""How much of a GPU's SMs kernels occupy over time, from their thread blocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simcore.graph.ops import IntArray
from simcore.units import PS_PER_MS
from workloads.imports.recorded import RecordedOps

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Utilisation:
    """Share of the SMs that hold a thread block, 0..1.

    ``series[k]`` is the mean over the ``k``-th millisecond of the step (the last may be shorter), ``mean``
    that over the step, ``peak`` the largest of the series.
    """

    mean: float
    peak: float
    series: FloatArray


def occupied_share(ops: RecordedOps, num_sms: int) -> FloatArray:
    """Per op the share of SMs that its blocks occupy while it runs, averaged over its waves.

    A full wave (``num_sms x blocks_per_sm`` blocks) occupies every SM.  The blocks of the last one go to one
    SM each as long as there are SMs without any.  0 for ops whose blocks are not recorded.
    """
    known = (ops.blocks > 0) & (ops.blocks_per_sm > 0) & ops.is_kernel
    in_wave = num_sms * np.where(known, ops.blocks_per_sm, 1.0)
    full = np.floor(ops.blocks / in_wave)
    rest = ops.blocks - full * in_wave
    last = np.minimum(rest, num_sms) / num_sms
    waves = np.maximum(full + (rest > 0), 1.0)
    return np.where(known, (full + last) / waves, 0.0)


def utilisation(share: FloatArray, members: IntArray, start_ps: IntArray, end_ps: IntArray) -> Utilisation:
    """Utilisation in a step that consists of ``members``; kernels that run together add up, to 1 at most."""
    start, end, share = start_ps[members], end_ps[members], share[members]
    begin, stop = int(start.min()), int(end.max())
    if stop == begin:
        return Utilisation(0.0, 0.0, np.zeros(0))
    time = np.concatenate([start, end])
    order = np.argsort(time, kind="stable")
    level = np.cumsum(np.concatenate([share, -share])[order]).clip(0.0, 1.0)
    time = time[order] - begin
    # The integral is piecewise linear: read it off at the edges of the bins.
    area = np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(time))])
    edges = np.append(np.arange(0, stop - begin, PS_PER_MS), stop - begin)
    at_edges = np.interp(edges, time, area)
    series = np.diff(at_edges) / np.diff(edges)
    return Utilisation(float(at_edges[-1] / (stop - begin)), float(series.max()), series)
