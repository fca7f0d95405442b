"""Timelines for Perfetto (ui.perfetto.dev) and chrome://tracing: JSON trace events, gzip.

One process per rank, one thread per stream, an arrow from every send to its recv, counters of its ports.
Format: "Trace Event Format" (Google, 2016); Perfetto reads times in us with nanosecond resolution.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from simcore.analysis.step import StepAnalysis
from simcore.report.trace_events import COLUMNS, Flows, rank_events
from simcore.timeline.info import RunInfo
from simcore.timeline.reader import Timeline

#: A file of this many rows takes about 4 s to write and still opens in a browser.
DEFAULT_MAX_ROWS = 1_000_000

#: Counters are step functions; more changes than this are left out of the picture (not of counters.parquet).
_MAX_COUNTER_ROWS = 500_000
_PORTS = ("nvlink.", "nic.")  # resources that belong to ranks
_RESOURCES_PID = 1 << 30


def default_ranks(timeline: Timeline, analysis: StepAnalysis, max_rows: int = DEFAULT_MAX_ROWS) -> list[int]:
    """The lowest rank of each stage; fewer, first and last kept, where they exceed ``max_rows`` rows."""
    lowest: dict[int, int] = {}
    for rank in analysis.ranks:
        lowest.setdefault(rank.stage, rank.rank)
    ranks = [lowest[stage] for stage in sorted(lowest)]
    rows_per_rank = max(timeline.num_rows // len(analysis.ranks), 1)
    count = min(len(ranks), max(max_rows // rows_per_rank, 1))
    picks = np.linspace(0, len(ranks) - 1, count).round().astype(int).tolist()
    return [ranks[pick] for pick in dict.fromkeys(picks)]


def write_perfetto(timeline: Timeline, path: Path, ranks: Sequence[int]) -> int:
    """Write the rows of ``ranks`` to ``path`` (gzip, whatever its suffix); returns the number of events.

    Errors: InputError for a rank outside the job.
    """
    for rank in ranks:
        timeline.representative(rank)
    count = 0
    partial = path.with_name(f".{path.name}.partial")
    try:
        with gzip.open(partial, "wb", compresslevel=1) as file:
            file.write(_header(timeline.info))
            for events in _batches(timeline, ranks):
                if events:
                    separator = ",\n" if count else ""
                    file.write((separator + ",\n".join(events)).encode())
                    count += len(events)
            file.write(b"\n]}\n")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return count


def _header(info: RunInfo) -> bytes:
    about = {
        "workload": info.workload.name,
        "cluster": str(info.cluster.get("name", "")),
        "network": info.network,
        "digest": info.digest,
    }
    return f'{{"displayTimeUnit":"ms","otherData":{json.dumps(about)},"traceEvents":[\n'.encode()


def _batches(timeline: Timeline, ranks: Sequence[int]) -> Iterator[list[str]]:
    flows = Flows()
    for position, rank in enumerate(ranks):
        rows = timeline.rank_rows(rank, COLUMNS)
        yield _process(timeline.info, rank, int(rows.ints("stage")[0]), position)
        yield rank_events(rows, rank, flows)
    yield list(flows.events())
    yield _counters(timeline, ranks)


def _process(info: RunInfo, rank: int, stage: int, position: int) -> list[str]:
    """Name and place of a rank's process: ``rank 8: stage 1 (pp 1, tp 0)``."""
    coordinates = ", ".join(f"{axis} {index}" for axis, index in info.coordinates(rank).items())
    name = f"rank {rank}: stage {stage}" + (f" ({coordinates})" if coordinates else "")
    return _process_events(rank, name, position)


def _process_events(pid: int, name: str, position: int) -> list[str]:
    return [
        f'{{"ph":"M","pid":{pid},"name":"process_name","args":{{"name":{json.dumps(name)}}}}}',
        f'{{"ph":"M","pid":{pid},"name":"process_sort_index","args":{{"sort_index":{position}}}}}',
    ]


def _counters(timeline: Timeline, ranks: Sequence[int]) -> list[str]:
    """Counters of the ranks' own ports in their processes, of all else but other ranks' ports in one more."""
    # A rank that another stands for has that rank's counters.
    ports: dict[str, list[tuple[int, str]]] = {}
    for rank in ranks:
        for port, name in _ports(timeline.info, timeline.representative(rank)).items():
            ports.setdefault(name, []).append((rank, port))
    counters = timeline.counters(lambda name: name in ports or not name.startswith(_PORTS))
    column = counters["resource"].cat
    places: dict[int, list[tuple[int, str]]] = {}
    for code, name in enumerate(column.categories):
        if name in ports:
            places[code] = ports[name]
        elif not name.startswith(_PORTS):
            places[code] = [(_RESOURCES_PID, name)]
    codes = column.codes.to_numpy()
    rows = np.flatnonzero(np.isin(codes, list(places)))
    if len(rows) == 0 or len(rows) > _MAX_COUNTER_ROWS:
        return []
    heads = {
        code: [f'{{"ph":"C","pid":{pid},"name":{json.dumps(label)},"ts":' for pid, label in place]
        for code, place in places.items()
    }
    time = counters["time_ps"].to_numpy()[rows] // 1000
    fields = zip(
        [heads[code] for code in codes[rows].tolist()],
        (time // 1000).tolist(),
        (time % 1000).tolist(),
        counters["value"].to_numpy()[rows].tolist(),
        strict=True,
    )
    template = '%s%d.%03d,"args":{"value":%r}}'
    events = [template % (head, *values) for found, *values in fields for head in found]
    if any(places[code][0][0] == _RESOURCES_PID for code in np.unique(codes[rows]).tolist()):
        events += _process_events(_RESOURCES_PID, "other links", _RESOURCES_PID)
    return events


def _ports(info: RunInfo, rank: int) -> dict[str, str]:
    """Counter label -> resource name of the NVLink port and NIC of a rank (ranks fill nodes in order)."""
    per_node = int(info.cluster.get("gpus_per_node", 1))
    nics = int(info.cluster.get("nics_per_node", per_node))
    node, local = divmod(rank, per_node)
    ports = {"NVLink": f"nvlink.{rank}", "NIC": f"nic.{node}.{local * nics // per_node}"}
    return {f"{label} {way}, B/s": f"{port}.{way}" for label, port in ports.items() for way in ("out", "in")}
