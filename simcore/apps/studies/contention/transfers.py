"""The other direction: recorded collectives beside compute against alone.

A recorded collective lasts from when its rank calls it, so it holds the wait for others.  That of the rank
which comes last is the transfer: the shortest of a group whose ranks are all recorded.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simcore.apps.studies.contention.beside import Channels
from simcore.records import dataclass
from simcore.units import PS_PER_US
from workloads.imports import ImportedJob
from workloads.imports.recorded import ImportedRank

#: Compute ran beside a transfer for at most and at least so much of its time, on all ranks together.
_ALONE: Final = 0.1
_BESIDE: Final = 0.8

_Place = tuple[int, str, int]  # a step, a kernel's name, which of that name


@dataclass(frozen=True)
class _Recorded:
    """Collectives of a rank (op by place), and when it computes: spans in order, ps."""

    rank: ImportedRank
    ops: dict[_Place, int]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]

    def length(self, place: _Place) -> int:
        ops, op = self.rank.recorded, self.ops[place]
        return int(ops.end_ps[op] - ops.start_ps[op])

    def computed(self, place: _Place, last_ps: int) -> int:
        """How long the rank computed in the last so many ps of a collective."""
        end = int(self.rank.recorded.end_ps[self.ops[place]])
        inside = np.minimum(self.ends, end) - np.maximum(self.starts, end - last_ps)
        return int(inside[inside > 0].sum())


def transfers(job: ImportedJob, channels: Channels) -> list[dict[str, Any]]:
    """By collective and size: how many transfers ran alone and beside compute, and medians of their times.

    ``alone_us`` and ``beside_us`` are None where none did, ``predicted_us`` is what NCCL takes on the cluster
    alone, launch included (None where it cannot).  Empty where no group with known sizes is recorded with all
    of its ranks.
    """
    recorded = {rank.number: _recorded(rank) for rank in job.ranks if rank.recorded.collectives is not None}
    times: dict[tuple[str, int, int], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for number, own in recorded.items():
        known = own.rank.recorded.collectives
        assert known is not None
        for place, op in own.ops.items():
            members = known.members[op]
            if len(members) < 2 or number != min(members) or known.num_bytes[op] <= 0:
                continue
            group = [recorded[member] for member in members if member in recorded]
            if len(group) < len(members) or not all(place in one.ops for one in group):
                continue
            lasts = min(one.length(place) for one in group)
            share = sum(one.computed(place, lasts) for one in group) / (len(group) * max(1, lasts))
            alone, beside = times[known.collective[op], int(known.num_bytes[op]), len(members)]
            if share <= _ALONE:
                alone.append(lasts)
            elif share >= _BESIDE:
                beside.append(lasts)
    return [
        {
            "collective": collective, "bytes": size, "ranks": ranks,
            "alone": len(alone), "alone_us": _median_us(alone),
            "beside": len(beside), "beside_us": _median_us(beside),
            "predicted_us": _predicted_us(channels, collective, size, ranks),
        }
        for (collective, size, ranks), (alone, beside) in sorted(times.items())
        if alone or beside
    ]  # fmt: skip


def _recorded(rank: ImportedRank) -> _Recorded:
    ops = rank.recorded
    found: dict[_Place, int] = {}
    for step, members in zip(rank.steps, rank.step_ops, strict=True):
        seen: dict[str, int] = defaultdict(int)
        for op in members[ops.is_kernel[members] & ops.is_comm[members]].tolist():
            name = ops.name[op]
            found[step.number, name, seen[name]] = op
            seen[name] += 1
    computes = ops.is_kernel & ~ops.is_comm
    return _Recorded(rank, found, ops.start_ps[computes], ops.end_ps[computes])


def _predicted_us(channels: Channels, collective: str, size: int, ranks: int) -> float | None:
    plan = channels.plan(collective, size, ranks)
    return plan.alone_ps / PS_PER_US if plan is not None else None


def _median_us(times_ps: list[int]) -> float | None:
    return float(np.median(times_ps)) / PS_PER_US if times_ps else None
