"""The Perfetto file of ranks that another stands for: identifiers, the clock, counters."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simcore.engine import LinkCounters
from simcore.report import write_perfetto
from simcore.timeline import Timeline, write_run
from tests.ring import WORLD_SIZE, ring_graph, ring_result, write_ring_run
from tests.synthetic import FACTS

Event = dict[str, Any]
Written = tuple[list[Event], dict[str, str], tuple[str, ...]]


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Written]:
    """Write ranks of the ring; gives events, ``otherData``, what was left out."""
    timeline = Timeline.open(write_ring_run(tmp_path / "ring"))

    def write(ranks: range = range(WORLD_SIZE), **options: Any) -> Written:
        path = tmp_path / "trace.json.gz"
        export = write_perfetto(timeline, path, ranks, **options)
        found = json.loads(gzip.decompress(path.read_bytes()))
        assert len(found["traceEvents"]) == export.num_events
        return found["traceEvents"], found["otherData"], export.left_out

    return write


def threads(events: list[Event], pid: int) -> dict[int, str]:
    return {
        event["tid"]: event["args"]["name"]
        for event in events
        if event["name"] == "thread_name" and event["pid"] == pid
    }


def counters(events: list[Event]) -> list[tuple[int, str, float, float]]:
    """Values of counters, named as Perfetto names their tracks, without the unit."""
    return [
        (e["pid"], f"{e['name']} {key}".removesuffix(" B/s"), e["ts"], value)
        for e in events
        if e["ph"] == "C"
        for key, value in e["args"].items()
    ]


@pytest.mark.parametrize("host", [False, True])
def test_no_thread_is_taken_for_the_main_thread_of_a_process(
    written: Callable[..., Written], host: bool
) -> None:
    events, _, _ = written(host=host)
    pairs = {(event["pid"], event["tid"]) for event in events if "tid" in event}
    # compute, mp, recv, send and, when asked for, host; Perfetto reads tid 0 and tid == pid as one thread.
    assert len(pairs) == WORLD_SIZE * (4 + host)
    assert not [(pid, tid) for pid, tid in pairs if tid in (0, pid)]


def test_threads_are_named_and_sorted_alike_in_every_process(written: Callable[..., Written]) -> None:
    events, _, _ = written(host=True)
    for rank in range(WORLD_SIZE):
        names = threads(events, rank)
        order = {
            event["args"]["sort_index"]: names[event["tid"]]
            for event in events
            if event["name"] == "thread_sort_index" and event["pid"] == rank
        }
        assert [order[index] for index in sorted(order)] == ["compute", "mp", "pp recv", "pp send", "host"]


def test_the_host_is_shown_when_asked_for(written: Callable[..., Written]) -> None:
    events, _, _ = written()
    assert "host" not in threads(events, 0).values()
    assert "cudaDeviceSynchronize" not in {event["name"] for event in events}
    events, _, _ = written(host=True)
    waits = [event for event in events if event["name"] == "cudaDeviceSynchronize"]
    assert [threads(events, wait["pid"])[wait["tid"]] for wait in waits] == ["host"] * WORLD_SIZE
    # A wait has no work of its own; ready at 98,000 ps and begun at 100,000: 2 ns.
    assert waits[0]["args"] == {"waited_us": 0.002, "phase": "fwd"}


def test_only_rows_of_a_microbatch_say_one(written: Callable[..., Written]) -> None:
    events, _, _ = written(range(1))
    shown = [(event["name"], event["args"].get("microbatch")) for event in events if event["ph"] == "X"]
    assert shown == [
        ("gemm", None),
        ("send pp", None),
        ("recv pp", None),
        ("all_reduce mp", None),
        ("gemm", 3),
        ("send pp", 3),
        ("recv pp", 3),
    ]


def test_ranks_have_as_many_digits_as_the_last(tmp_path: Path, written: Callable[..., Written]) -> None:
    def process_names(events: list[Event]) -> list[str]:
        return [event["args"]["name"] for event in events if event["name"] == "process_name"]

    assert process_names(written(range(2))[0])[:2] == ["rank 0: stage 0 (pp 0)", "rank 1: stage 0 (pp 1)"]
    # The same run as if it were of 1,001 ranks, 0 to 1000: four digits.
    timeline = Timeline.open(tmp_path / "ring")
    workload = timeline.info.workload.model_copy(update={"world_size": 1001})
    timeline.info = timeline.info.model_copy(update={"workload": workload})
    path = tmp_path / "large.json.gz"
    write_perfetto(timeline, path, [5])
    found = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    assert process_names(found)[0] == "rank 0005: stage 0 (pp 5)"


def test_every_counter_begins_at_the_origin(written: Callable[..., Written]) -> None:
    events, about, left_out = written(range(2))
    others = next(e["pid"] for e in events if e.get("args") == {"name": "other links"})
    assert others > WORLD_SIZE
    # Rank 1 has the counters of rank 0, which stands for it; leaf.1.up has a value at 0 and needs no zero.
    # nvlink.3.out never changes, nor is rank 3 shown.
    assert sorted(counters(events)) == [
        (0, "NVLink out", 0.0, 0.0),
        (0, "NVLink out", 0.1, 1e9),
        (0, "NVLink out", 0.12, 0.0),
        (1, "NVLink out", 0.0, 0.0),
        (1, "NVLink out", 0.1, 1e9),
        (1, "NVLink out", 0.12, 0.0),
        (others, "leaf.0.up", 0.0, 0.0),
        (others, "leaf.0.up", 0.1, 2e9),
        (others, "leaf.0.up", 0.12, 0.0),
        (others, "leaf.1.up", 0.0, 5.0),
    ]
    assert left_out == ()
    assert "left out" not in about


def test_time_begins_at_the_origin_without_counters_too(tmp_path: Path) -> None:
    result = replace(
        ring_result(),
        counters=LinkCounters(
            np.zeros(0, dtype=np.int64),
            np.zeros(0, dtype=np.int32),
            np.zeros(0),
        ),
    )
    write_run(tmp_path / "run", ring_graph(), result, FACTS)
    path = tmp_path / "trace.json.gz"
    write_perfetto(Timeline.open(tmp_path / "run"), path, [4, 5])
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    # Perfetto shows times from the earliest event: without a mark, from the first kernel at 10 ns.
    first = min((event for event in events if "ts" in event), key=lambda event: float(event["ts"]))
    assert (first["name"], first["ph"], first["pid"], first["ts"]) == ("step begins", "i", 4, 0)
    assert threads(events, 4)[first["tid"]] == "compute"


@pytest.mark.parametrize(
    ("max_rows", "shown"),
    [
        # The port's two rows, six times, and three of the links.
        (15, {"NVLink out", "leaf.0.up", "leaf.1.up"}),
        (14, {"leaf.0.up", "leaf.1.up"}),
        (3, {"leaf.0.up", "leaf.1.up"}),
        (2, set()),
    ],
)
def test_too_many_counters_of_ports_leave_those_of_links(
    written: Callable[..., Written], max_rows: int, shown: set[str]
) -> None:
    events, about, left_out = written(max_counter_rows=max_rows)
    assert {name for _, name, _, _ in counters(events)} == shown
    missing = []
    if not shown:
        missing.append("counters of other links (3 changes)")
    if "NVLink out" not in shown:
        missing.append("counters of NVLink and NIC (12 changes)")
    assert left_out == tuple(missing)
    assert about.get("left out", "") == "; ".join(missing)
