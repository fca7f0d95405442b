"""Timelines for Perfetto (ui.perfetto.dev) and chrome://tracing: JSON trace events, gzip.

One process per rank, one thread per stream, an arrow from every send to its recv, counters of resources.
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
_MAX_COUNTER_ROWS = 200_000
_COUNTER_PID = 1 << 30


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
    yield _counters(timeline)


def _process(info: RunInfo, rank: int, stage: int, position: int) -> list[str]:
    """Name and place of a rank's process: ``rank 8: stage 1 (pp 1, tp 0)``."""
    coordinates = ", ".join(f"{axis} {index}" for axis, index in info.coordinates(rank).items())
    name = f"rank {rank}: stage {stage}" + (f" ({coordinates})" if coordinates else "")
    return [
        f'{{"ph":"M","pid":{rank},"name":"process_name","args":{{"name":{json.dumps(name)}}}}}',
        f'{{"ph":"M","pid":{rank},"name":"process_sort_index","args":{{"sort_index":{position}}}}}',
    ]


def _counters(timeline: Timeline) -> list[str]:
    counters = timeline.counters()
    if counters.empty or len(counters) > _MAX_COUNTER_ROWS:
        return []
    names = {name: json.dumps(name) for name in counters["resource"].unique()}
    events = [
        f'{{"ph":"M","pid":{_COUNTER_PID},"name":"process_name","args":{{"name":"resources"}}}}',
        f'{{"ph":"M","pid":{_COUNTER_PID},"name":"process_sort_index","args":{{"sort_index":{_COUNTER_PID}}}}}',
    ]
    columns = (counters["time_ps"] // 1000, counters["resource"], counters["value"])
    for time, resource, value in zip(*(column.tolist() for column in columns), strict=True):
        events.append(
            f'{{"ph":"C","pid":{_COUNTER_PID},"name":{names[resource]},'
            f'"ts":{time // 1000}.{time % 1000:03d},"args":{{"value":{value!r}}}}}'
        )
    return events
