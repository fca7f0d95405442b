"""Conformal bands of predicted times beside communication: how wide, from other traces, and how often right.

Split conformal prediction: the band of a kernel is its predicted time times and over one factor, the smallest
that holds :data:`SHARE` of the other traces' kernels of its length (and one more kernel, for finite samples).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from simcore.apps.studies.contention.rows import TraceRows
from simcore.apps.studies.contention.summary import SHORT_US
from simcore.units import PS_PER_US

SHARE: Final = 0.9


def bands(
    traces: Sequence[TraceRows], times: Sequence[Mapping[str, Sequence[float]]]
) -> list[dict[str, dict[str, dict[str, Any]]]]:
    """Of each trace by model and length: the factor of the others' band, and the share of kernels inside it.

    ``times`` are predictions in ps by model, in the order of the rows.  Empty where no other trace has such
    kernels.
    """
    errors = [
        {name: _by_length(trace, predicted) for name, predicted in models.items()}
        for trace, models in zip(traces, times, strict=True)
    ]
    found: list[dict[str, dict[str, dict[str, Any]]]] = []
    for number, models in enumerate(errors):
        others = errors[:number] + errors[number + 1 :]
        found.append(
            {
                name: {
                    length: {"factor": math.exp(width), "inside": float((own <= width).mean())}
                    for length, own in lengths.items()
                    if (known := [one[name][length] for one in others if length in one.get(name, {})])
                    for width in (_width(np.concatenate(known)),)
                }
                for name, lengths in models.items()
            }
        )
    return found


def _by_length(trace: TraceRows, predicted_ps: Sequence[float]) -> dict[str, Any]:
    """Distances of predicted from recorded times, logarithmic."""
    recorded = np.array([row.kernel.recorded_ps for row in trace.rows], dtype=np.float64)
    distance = np.abs(np.log(np.array(predicted_ps) / recorded))
    short = np.array([row.kernel.alone_ps < SHORT_US * PS_PER_US for row in trace.rows])
    groups = {f"at least {SHORT_US} us": distance[~short], f"below {SHORT_US} us": distance[short]}
    return {name: group for name, group in groups.items() if len(group)}


def _width(distances: Any) -> float:
    """The distance that holds :data:`SHARE` of these and one more."""
    rank = min(len(distances), math.ceil(SHARE * (len(distances) + 1)))
    return float(np.sort(distances)[rank - 1])
