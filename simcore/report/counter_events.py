"""Rates on links as trace events (JSON text): ports in their rank's process, all other links in one more."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simcore.graph.arrow import values_of
from simcore.timeline.info import RunInfo
from simcore.timeline.reader import Timeline

#: Process of the links that belong to no rank.
LINKS_PID = 1 << 30

_PORTS = ("nvlink.", "nic.")  # resources that belong to ranks

#: (process, label) of every counter that shows a resource: a rank shows the ports of the rank that stands
#: for it, so a resource may be in several processes.
_Places = Mapping[int, Sequence[tuple[int, str]]]


@dataclass(frozen=True)
class ChosenCounters:
    """Counters to show and their changes, each counter's in order of time; ``left_out``: those not shown."""

    places: _Places
    resource: npt.NDArray[np.int64]
    time_ns: npt.NDArray[np.int64]
    value: npt.NDArray[np.float64]
    left_out: tuple[str, ...]

    @property
    def has_links(self) -> bool:
        """Whether any counter belongs to :data:`LINKS_PID`."""
        return any(pid == LINKS_PID for place in self.places.values() for pid, _ in place)

    def events(self) -> list[str]:
        """One event per change, and a zero at the origin wherever a counter changes only later.

        Perfetto draws a counter from its first value, and counts time from the first event of all.
        """
        # The key of the value is the unit: Perfetto shows it behind the counter's name.
        heads = {
            code: [f'{{"ph":"C","pid":{pid},"name":{json.dumps(label)},"ts":' for pid, label in place]
            for code, place in self.places.items()
        }
        codes, first = np.unique(self.resource, return_index=True)
        late = codes[self.time_ns[first] > 0].tolist()
        events = [f'{head}0,"args":{{"B/s":0.0}}}}' for code in late for head in heads[code]]
        fields = zip(
            [heads[code] for code in self.resource.tolist()],
            (self.time_ns // 1000).tolist(),
            (self.time_ns % 1000).tolist(),
            self.value.tolist(),
            strict=True,
        )
        template = '%s%d.%03d,"args":{"B/s":%r}}'
        events += [template % (head, *values) for found, *values in fields for head in found]
        return events


def choose_counters(timeline: Timeline, ranks: Sequence[int], max_rows: int) -> ChosenCounters:
    """Counters of the ports of ``ranks`` and of the links between nodes, ``max_rows`` changes at most.

    The links come first, since they are few and shared by all; ports are shown if they all fit in beside.
    """
    of_port: dict[str, list[tuple[int, str]]] = {}
    for rank in ranks:
        for port, label in _ports(timeline.info, timeline.representative(rank)).items():
            of_port.setdefault(port, []).append((rank, label))
    counters = timeline.counter_rows(lambda name: name in of_port or not name.startswith(_PORTS))
    column = counters["resource"].combine_chunks()
    codes, known = np.zeros(0, dtype=np.int64), list[str]()
    if len(counters):  # an empty column has no chunk to combine
        codes, known = values_of(column.indices).astype(np.int64), column.dictionary.to_pylist()
    changes = np.bincount(codes, minlength=len(known)).tolist()
    names = list(enumerate(known))
    links = {code: [(LINKS_PID, name)] for code, name in names if not name.startswith(_PORTS)}
    ports = {code: of_port[name] for code, name in names if name in of_port}
    shown: dict[int, list[tuple[int, str]]] = {}
    left_out = []
    num_rows = 0
    for what, places in (("other links", links), ("NVLink and NIC", ports)):
        used = {code: place for code, place in places.items() if changes[code]}
        added = sum(changes[code] * len(place) for code, place in used.items())
        if num_rows + added > max_rows:
            left_out.append(f"counters of {what} ({added:,} changes)")
        else:
            shown |= used
            num_rows += added
    rows = np.flatnonzero(np.isin(codes, list(shown)))
    return ChosenCounters(
        places=shown,
        resource=codes[rows],
        time_ns=values_of(counters["time_ps"])[rows] // 1000,
        value=values_of(counters["value"])[rows],
        left_out=tuple(left_out),
    )


def _ports(info: RunInfo, rank: int) -> dict[str, str]:
    """Resource name -> counter label of the NVLink port and NIC of a rank (ranks fill nodes in order)."""
    per_node = int(info.cluster.get("gpus_per_node", 1))
    nics = int(info.cluster.get("nics_per_node", per_node))
    node, local = divmod(rank, per_node)
    ports = {f"nvlink.{rank}": "NVLink", f"nic.{node}.{local * nics // per_node}": "NIC"}
    return {f"{port}.{way}": f"{label} {way}" for port, label in ports.items() for way in ("out", "in")}
