"""How full links are: node by node, with who uses the fullest one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simcore.analysis.intervals import IntArray
from simcore.analysis.totals import ToldApart, Totals
from simcore.errors import InputError
from simcore.graph.arrow import values_of
from simcore.graph.kinds import COMMUNICATION_KINDS
from simcore.records import dataclass
from simcore.timeline.reader import Timeline
from simcore.units import s_from_ps

#: What a GPU has of its own, both ways.
KINDS: Final = ("nvlink out", "nvlink in", "nic out", "nic in")


@dataclass(frozen=True)
class StepLink:
    """A link over the step: bytes moved, mean and highest rate, capacity, bytes/s (0: not known)."""

    name: str
    num_bytes: float
    mean: float
    highest: float
    capacity: float

    @property
    def share(self) -> float:
        """Mean rate as a share of the capacity."""
        return self.mean / self.capacity if self.capacity else 0.0


@dataclass(frozen=True)
class AlikeNodes:
    """Nodes used alike: the first, how many, and by kind of link (:data:`KINDS`) the share of each GPU.

    A share is None where the GPU has no such link that anything went over.
    """

    first: int
    count: int
    shares: Mapping[str, tuple[float | None, ...]]


@dataclass(frozen=True)
class StepLinks:
    """``links``, the fullest first; ``nodes`` where ranks fill them in order; ``users`` of the fullest link.

    A user is (collective, group, bytes, seconds) of the rank whose link it is, the most bytes first.
    """

    links: tuple[StepLink, ...]
    nodes: tuple[AlikeNodes, ...]
    users: tuple[tuple[str, str, float, float], ...]


def step_links(timeline: Timeline) -> StepLinks:
    """What every link that anything went over carried."""
    info, cluster = timeline.info, timeline.info.cluster
    links: dict[str, StepLink] = {}
    for name, (num_bytes, highest) in _integrals(timeline).items():
        mean = num_bytes / s_from_ps(info.step_ps)
        links[name] = StepLink(name, num_bytes, mean, highest, _capacity(name, cluster))
    ordered = sorted(links.values(), key=lambda one: (-one.share, -one.mean, one.name))
    nodes = _nodes(timeline, links) if cluster.get("placement", "linear") == "linear" else ()
    return StepLinks(tuple(ordered), nodes, _users(timeline, ordered[0].name) if ordered else ())


def _integrals(timeline: Timeline) -> dict[str, tuple[float, float]]:
    """Of each link its bytes and its highest rate.  Rows are read a part at a time: there may be millions."""
    step_ps = timeline.info.step_ps
    found: dict[str, tuple[float, float]] = {}
    times, values, last = np.zeros(0, dtype=np.int64), np.zeros(0), ""
    for table in timeline.counter_parts():
        if not table.num_rows:
            continue
        column = table.column("resource").combine_chunks()
        codes = values_of(column.indices)
        first = np.flatnonzero(np.concatenate([[True], codes[1:] != codes[:-1]]))
        names = [column.dictionary[code].as_py() for code in codes[first].tolist()]
        if names[0] != last:
            found |= _integrated([last][: len(times)], np.zeros(1, dtype=np.int64), times, values, step_ps)
            times, values = times[:0], values[:0]
        if len(set(names)) < len(names) or not found.keys().isdisjoint(names):
            raise InputError(f"{timeline.run_dir}: counters are damaged: rows of a resource are not together")
        first[1:] += len(times)
        times = np.concatenate([times, values_of(table.column("time_ps"))])
        values = np.concatenate([values, values_of(table.column("value"))])
        # The last link may go on in the next part.
        last, kept = names[-1], int(first[-1])
        found |= _integrated(names[:-1], first[:-1], times[:kept], values[:kept], step_ps)
        times, values = times[kept:], values[kept:]
    return found | _integrated([last][: len(times)], np.zeros(1, dtype=np.int64), times, values, step_ps)


def _integrated(
    names: list[str], first: IntArray, times: IntArray, values: npt.NDArray[np.float64], step_ps: int
) -> dict[str, tuple[float, float]]:
    """See :func:`_integrals`; rows of each of ``names`` begin at ``first``."""
    if not names:
        return {}
    durations = np.append(times[1:], step_ps)
    durations[first[1:] - 1] = step_ps
    durations -= times
    moved = values * np.maximum(0, durations, out=durations)
    moved *= 1e-12
    sums, peaks = np.add.reduceat(moved, first), np.maximum.reduceat(values, first)
    return dict(zip(names, zip(sums.tolist(), peaks.tolist(), strict=True), strict=True))


def _capacity(name: str, cluster: Mapping[str, Any]) -> float:
    """Bytes/s that a link of a GPU or a node takes; 0 for links of the fabric."""
    kind = name.partition(".")[0]
    overrides = cluster.get("link_overrides") or {}
    if f"{name}.bytes_per_s" in overrides:
        return float(overrides[f"{name}.bytes_per_s"])
    gpu = cluster.get("gpu", {})
    if kind == "nvlink":
        return float(gpu.get("nvlink_bytes_per_s") or 0.0) * float(gpu.get("nvlink_efficiency") or 1.0)
    if kind == "nic":
        return float(cluster.get("nic_bytes_per_s") or 0.0) * float(cluster.get("nic_efficiency") or 1.0)
    return 0.0


def _nodes(timeline: Timeline, links: Mapping[str, StepLink]) -> tuple[AlikeNodes, ...]:
    """Nodes by what their GPUs' classes use, alike ones in a row together."""
    cluster = timeline.info.cluster
    per_node = int(cluster.get("gpus_per_node") or 1)
    nics = int(cluster.get("nics_per_node") or 0)
    size = timeline.info.workload.world_size
    found: list[AlikeNodes] = []
    known: dict[int, tuple[float | None, ...]] = {}
    for first in range(0, size, per_node):
        of_gpus = []
        for rank in range(first, min(size, first + per_node)):
            one = timeline.representative(rank)
            if one not in known:
                nic = one % per_node * nics // per_node if nics else -1
                names = (
                    f"nvlink.{one}.out", f"nvlink.{one}.in",
                    f"nic.{one // per_node}.{nic}.out", f"nic.{one // per_node}.{nic}.in",
                )  # fmt: skip
                known[one] = tuple(links[name].share if name in links else None for name in names)
            of_gpus.append(known[one])
        shares = {kind: tuple(gpu[at] for gpu in of_gpus) for at, kind in enumerate(KINDS)}
        if found and found[-1].shares == shares:
            found[-1] = AlikeNodes(found[-1].first, found[-1].count + 1, shares)
        else:
            found.append(AlikeNodes(first // per_node, 1, shares))
    return tuple(found)


def _users(timeline: Timeline, name: str) -> tuple[tuple[str, str, float, float], ...]:
    """What the rank of a link communicates, the most bytes first."""
    kind, *numbers = name.split(".")
    per_node = int(timeline.info.cluster.get("gpus_per_node") or 1)
    nics = int(timeline.info.cluster.get("nics_per_node") or 1)
    if kind == "nvlink" and numbers and numbers[0].isdecimal():
        rank = int(numbers[0])
    elif kind == "nic" and len(numbers) > 1 and numbers[0].isdecimal() and numbers[1].isdecimal():
        rank = int(numbers[0]) * per_node + int(numbers[1]) * per_node // nics
    else:
        return ()
    if rank >= len(timeline.ranks):
        return ()
    columns = ("name", "kind", "group", "bytes", "flops", "start_ps", "end_ps", "alone_ps")
    rows = timeline.rank_rows(rank, columns)
    at = np.flatnonzero(rows.are("kind", COMMUNICATION_KINDS))
    apart, totals = ToldApart.of(rows, ("name", "group"), at), Totals(("name", "group"))
    totals.add(rows, apart, apart.summed((rows.ints("end_ps") - rows.ints("start_ps"))[at]))
    found = [
        (op, group, total.num_bytes / rows.num_ranks, s_from_ps(total.time_ps / rows.num_ranks))
        for (op, group), total in totals.by_key.items()
    ]
    return tuple(sorted(found, key=lambda one: -one[2]))
