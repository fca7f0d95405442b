"""Timelines for Perfetto (ui.perfetto.dev) and chrome://tracing: JSON trace events, gzip; or Perfetto's own.

One process per rank, one thread per stream, an arrow from every send to its recv, counters of its ports
and of what it holds.
Format: "Trace Event Format" (Google, 2016); Perfetto reads times in us with nanosecond resolution.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from simcore.files import whole_file
from simcore.records import dataclass
from simcore.report.arrows import Arrows
from simcore.report.compressed import compressed
from simcore.report.counter_events import LINKS_PID, ChosenCounters, choose_counters
from simcore.report.event_text import Events
from simcore.report.memory_events import memory_events
from simcore.report.perfetto_packets import perfetto_packets
from simcore.report.trace_events import COLUMNS, origin_event, rank_events
from simcore.timeline.info import RunInfo
from simcore.timeline.reader import Timeline

#: A file of this many rows takes about 4 s to write and still opens in a browser.
DEFAULT_MAX_ROWS = 1_000_000

#: Counters are step functions; more changes than this are left out of the picture (not of counters.parquet).
DEFAULT_MAX_COUNTER_ROWS = 500_000


@dataclass(frozen=True)
class PerfettoExport:
    """What a Perfetto file holds: its events, and in words what did not fit."""

    num_events: int
    left_out: tuple[str, ...]


def default_ranks(
    timeline: Timeline, stage_of: Mapping[int, int], max_rows: int = DEFAULT_MAX_ROWS
) -> list[int]:
    """The lowest rank of each stage; fewer, first and last kept, where they exceed ``max_rows`` rows.

    ``stage_of``: of each rank that stands for a class.
    """
    lowest: dict[int, int] = {}
    for rank in sorted(stage_of):
        lowest.setdefault(stage_of[rank], rank)
    ranks = [lowest[stage] for stage in sorted(lowest)]
    rows_per_rank = max(timeline.num_rows // len(stage_of), 1)
    count = min(len(ranks), max(max_rows // rows_per_rank, 1))
    picks = np.linspace(0, len(ranks) - 1, count).round().astype(int).tolist()
    return [ranks[pick] for pick in dict.fromkeys(picks)]


def write_perfetto(
    timeline: Timeline,
    path: Path,
    ranks: Sequence[int],
    *,
    host: bool = False,
    max_counter_rows: int = DEFAULT_MAX_COUNTER_ROWS,
    curves_written: Callable[[], None] = lambda: None,
) -> PerfettoExport:
    """Write the rows of ``ranks`` to ``path``: gzipped JSON, or Perfetto's packets if it ends in .pftrace.

    ``host`` adds what the host does.  It mostly waits for its GPU: with that, a rank folded to one line
    looks busy from beginning to end.  ``curves_written`` returns when the run folder has what stages hold.

    Errors: InputError for a rank outside the job.
    """
    for rank in ranks:
        timeline.representative(rank)
    counters = choose_counters(timeline, ranks, max_counter_rows)
    count = 0
    with whole_file(path) as fresh:
        if path.suffix == ".pftrace":
            batches = list(_batches(timeline, ranks, host, counters, curves_written))
            count = sum(batch.count for batch in batches)
            fresh.write_bytes(b"".join(perfetto_packets(batches)))
        else:
            with compressed(fresh) as write:
                write(_header(timeline.info, counters.left_out))
                for batch in _batches(timeline, ranks, host, counters, curves_written):
                    write(batch.text if count else batch.text[2:])  # no comma before the first
                    count += batch.count
                write(b"\n]}\n")
    return PerfettoExport(count, counters.left_out)


def _header(info: RunInfo, left_out: Sequence[str]) -> bytes:
    about = {
        "workload": info.workload.name,
        "cluster": str(info.cluster.get("name", "")),
        "network": info.network,
        "digest": info.digest,
    }
    if left_out:
        about["left out"] = "; ".join(left_out)
    return f'{{"displayTimeUnit":"ms","otherData":{json.dumps(about)},"traceEvents":[\n'.encode()


def _batches(
    timeline: Timeline, ranks: Sequence[int], host: bool, counters: ChosenCounters,
    curves_written: Callable[[], None],
) -> Iterator[Events]:  # fmt: skip
    arrows = Arrows()
    stage_of: dict[int, int] = {}
    for position, rank in enumerate(ranks):
        rows = timeline.rank_rows(rank, COLUMNS)
        stage_of[rank] = int(rows.ints("stage")[0])
        yield _process(timeline.info, rank, stage_of[rank], position)
        yield from rank_events(rows, rank, arrows, host=host)
    yield from arrows.events()
    if counters.has_links:
        yield _process_events(LINKS_PID, "other links", len(ranks))
    yield from counters.events()
    curves_written()
    yield from memory_events(timeline.run_dir, stage_of)
    if not counters.places:
        yield Events.of(map(origin_event, ranks[:1]))


def _process(info: RunInfo, rank: int, stage: int, position: int) -> Events:
    """Name and place of a rank's process: ``rank 08: stage 1 (pp 1, tp 0)``."""
    coordinates = ", ".join(f"{axis} {index}" for axis, index in info.coordinates(rank).items())
    # Perfetto 52 sorts processes by their names as text, and not by process_sort_index.
    digits = len(str(info.workload.world_size - 1))
    name = f"rank {rank:0{digits}d}: stage {stage}" + (f" ({coordinates})" if coordinates else "")
    return _process_events(rank, name, position)


def _process_events(pid: int, name: str, position: int) -> Events:
    return Events.of(
        (
            f'{{"ph":"M","pid":{pid},"name":"process_name","args":{{"name":{json.dumps(name)}}}}}',
            f'{{"ph":"M","pid":{pid},"name":"process_sort_index","args":{{"sort_index":{position}}}}}',
        )
    )
