"""Rates on links as trace events (JSON text): ports in their rank's process, all other links in one more."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from simcore.distinct import among
from simcore.graph.arrow import values_of
from simcore.graph.flatten import by_code
from simcore.records import dataclass
from simcore.report.event_text import Events, IntArray, microseconds, numbered
from simcore.timeline.info import RunInfo
from simcore.timeline.reader import Timeline

#: Process of the links that belong to no rank.
LINKS_PID = 1 << 30

_PORTS = ("nvlink.", "nic.")  # resources that belong to ranks
_UNIT = "B/s"


@dataclass(frozen=True)
class Place:
    """Where a resource is drawn: the process, its counter there, and which of the counter's values it is.

    A port's two directions are one counter, ``NVLink``, with values ``out`` and ``in``.
    """

    pid: int
    counter: str
    value: str = ""

    @property
    def key(self) -> str:
        """What the value is called in an event: Perfetto shows it, and so the unit, behind the counter."""
        return f"{self.value} {_UNIT}".lstrip()


@dataclass(frozen=True)
class ChosenCounters:
    """Counters to show and their changes, each resource's in order of time; ``left_out``: those not shown.

    A rank shows the ports of the rank that stands for it, so a resource may be in several places.
    """

    places: Mapping[int, Sequence[Place]]
    resource: IntArray
    time_ns: IntArray
    value: npt.NDArray[np.float64]
    left_out: tuple[str, ...]

    @property
    def has_links(self) -> bool:
        """Whether any counter belongs to :data:`LINKS_PID`."""
        return any(place.pid == LINKS_PID for places in self.places.values() for place in places)

    def events(self) -> Iterator[Events]:
        """One event per counter and time at which it changes, and a zero at the origin where none is.

        Perfetto draws a counter from its first value, and counts time from the first event of all.  Of
        changes within one of its nanoseconds it would draw the last one.
        """
        drawn: dict[tuple[int, str], dict[str, int]] = {}
        for code, places in self.places.items():
            for place in places:
                drawn.setdefault((place.pid, place.counter), {})[place.key] = code
        for (pid, name), codes in drawn.items():
            yield from self._counter(pid, name, codes)

    def _counter(self, pid: int, name: str, codes: Mapping[str, int]) -> Iterator[Events]:
        """The events of one counter with its values, resources by key."""
        changes = [self._changes[code] for code in codes.values()]
        times = np.sort(np.concatenate([time_ns for time_ns, _ in changes]), kind="stable")  # merges them
        times = times[np.append(True, times[1:] > times[:-1])]
        texts = []
        together = np.zeros(len(times), dtype=np.int64)  # which texts, the keys as digits
        for key, (time_ns, value) in zip(codes, changes, strict=True):
            distinct, number = np.unique(value, return_inverse=True)
            texts.append(["", *(f"{json.dumps(key)}:{rate!r}" for rate in distinct.tolist())])
            becomes = np.zeros(len(times), dtype=np.int64)  # no text where the value stays
            becomes[np.searchsorted(times, time_ns)] = number + 1
            together = together * len(texts[-1]) + becomes
        head_of, first = numbered(together)
        sizes = [len(choices) for choices in texts]
        picked = np.stack(np.unravel_index(together[first], sizes), axis=1).tolist()
        start = f'{{"ph":"C","pid":{pid},"name":{json.dumps(name)},"args":{{'
        heads = [
            start + ",".join(filter(None, (choices[k] for choices, k in zip(texts, numbers, strict=True))))
            for numbers in picked
        ]
        return Events.alike(heads, head_of, '},"ts":', microseconds(times), "}")

    @cached_property
    def _changes(self) -> dict[int, tuple[IntArray, npt.NDArray[np.float64]]]:
        """(time, value) of each resource's changes, one per ns, from a zero at the origin if no other."""
        order = by_code(self.resource)
        codes, first = np.unique(self.resource[order], return_index=True)
        found = {}
        for code, rows in zip(codes.tolist(), np.split(order, first[1:]), strict=True):
            time_ns, value = self.time_ns[rows], self.value[rows]
            if time_ns[0] > 0:
                time_ns, value = np.append(0, time_ns), np.append(0.0, value)
            last = np.append(time_ns[1:] > time_ns[:-1], True)
            found[code] = time_ns[last], value[last]
        return found


def choose_counters(timeline: Timeline, ranks: Sequence[int], max_rows: int) -> ChosenCounters:
    """Counters of the ports of ``ranks`` and of the links between nodes, ``max_rows`` changes at most.

    The links come first, since they are few and shared by all; ports are shown if they all fit in beside.
    """
    of_port: dict[str, list[Place]] = {}
    for rank in ranks:
        for port, place in _ports(timeline.info, timeline.representative(rank), rank).items():
            of_port.setdefault(port, []).append(place)
    counters = timeline.counter_rows(lambda name: name in of_port or not name.startswith(_PORTS))
    column = counters["resource"].combine_chunks()
    codes, known = np.zeros(0, dtype=np.int64), list[str]()
    if len(counters):  # an empty column has no chunk to combine
        codes, known = values_of(column.indices).astype(np.int64), column.dictionary.to_pylist()
    changes = np.bincount(codes, minlength=len(known)).tolist()
    names = list(enumerate(known))
    links = {code: [Place(LINKS_PID, name)] for code, name in names if not name.startswith(_PORTS)}
    ports = {code: of_port[name] for code, name in names if name in of_port}
    shown: dict[int, list[Place]] = {}
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
    rows = np.flatnonzero(among(codes, np.array(list(shown), dtype=np.int64)))
    return ChosenCounters(
        places=shown,
        resource=codes[rows],
        time_ns=values_of(counters["time_ps"])[rows] // 1000,
        value=values_of(counters["value"])[rows],
        left_out=tuple(left_out),
    )


def _ports(info: RunInfo, rank: int, shown_in: int) -> dict[str, Place]:
    """Where the NVLink port and the NIC of a rank are drawn, by resource (ranks fill nodes in order)."""
    per_node = int(info.cluster.get("gpus_per_node", 1))
    nics = int(info.cluster.get("nics_per_node", per_node))
    node, local = divmod(rank, per_node)
    ports = {f"nvlink.{rank}": "NVLink", f"nic.{node}.{local * nics // per_node}": "NIC"}
    return {
        f"{port}.{way}": Place(shown_in, counter, way)
        for port, counter in ports.items()
        for way in ("out", "in")
    }
