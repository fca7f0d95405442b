"""The Perfetto file: valid JSON, one process per rank, arrows with two ends, slices that nest."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simcore.analysis import analyse
from simcore.errors import InputError
from simcore.files import write_manifest
from simcore.report import default_ranks, write_perfetto
from simcore.timeline import Timeline, write_run
from simcore.timeline.memory_table import write_memory
from simcore.timeline.schema import RUN
from tests.synthetic import FACTS, two_stage_graph, two_stage_result

Event = dict[str, Any]


def events_of(run: Path, ranks: list[int]) -> list[Event]:
    return _events(Timeline.open(run), run, ranks)


def _events(timeline: Timeline, run: Path, ranks: list[int]) -> list[Event]:
    path = run.parent / "trace.json.gz"
    count = write_perfetto(timeline, path, ranks).num_events
    events: list[Event] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    assert len(events) == count
    return events


def slices(events: list[Event], rank: int) -> list[Event]:
    return [event for event in events if event["ph"] == "X" and event["pid"] == rank]


def test_what_stages_hold_is_a_counter_for_each_category(two_stage_run: Path) -> None:
    times, held = np.array([0, 2_500_000, 7_000_000]), np.array([5, 9, 9])
    write_memory(two_stage_run, [(1, times, {"activations": held, "messages": 0 * held})])
    write_manifest(two_stage_run, RUN)
    events = _events(Timeline.open(two_stage_run), two_stage_run, [0, 1])
    found = [event for event in events if event["name"].startswith("memory")]
    # Of stage 1 alone, where it changes: 0 and 2.5 us; messages hold nothing.
    assert [(one["pid"], one["name"], one["ts"], one["args"]) for one in found] == [
        (1, "memory, activations", 0.0, {"B": 5}), (1, "memory, activations", 2.5, {"B": 9}),
    ]  # fmt: skip


def test_processes_and_threads_have_names(two_stage_run: Path) -> None:
    events = events_of(two_stage_run, [0, 1])
    names = {(event["pid"], event["name"]): event["args"] for event in events if event["ph"] == "M"}
    assert names[0, "process_name"] == {"name": "rank 0: stage 0 (pp 0)"}
    assert names[1, "process_name"] == {"name": "rank 1: stage 1 (pp 1)"}
    threads = [event for event in events if event["name"] == "thread_name" and event["pid"] == 0]
    assert [thread["args"]["name"] for thread in threads] == ["compute", "dp", "pp recv", "pp send"]


def test_slices_are_the_rows(two_stage_run: Path) -> None:
    found = slices(events_of(two_stage_run, [0]), 0)
    # Times in us: row 2 runs from 110,000 ps = 0.110 us for 40,000 ps = 0.040 us; ready at 105,000 ps.
    assert [event["name"] for event in found][:3] == ["gemm", "send pp", "aten::bmm"]
    assert (found[2]["ts"], found[2]["dur"], found[2]["args"]["waited_us"]) == (0.110, 0.040, 0.005)
    assert found[0]["args"] == {
        "microbatch": 0,
        "waited_us": 0,
        "alone_us": 0.09,
        "phase": "fwd",
        "layer": 0,
        "flops": 4000,
        "bytes": 15,
    }
    assert (found[1]["args"]["op"], found[1]["args"]["peer"]) == ("nccl::send", 1)
    assert (found[5]["name"], found[5]["args"]["op"]) == ("all_reduce dp", "nccl::all_reduce")
    assert found[5]["args"]["algorithm"] == "ring"
    assert found[5]["cat"] == "grad_sync"


def test_arrows_join_sends_to_their_recvs(two_stage_run: Path) -> None:
    events = events_of(two_stage_run, [0, 1])
    ends: dict[int, dict[str, Event]] = defaultdict(dict)
    for event in events:
        if event["ph"] in "sf":
            ends[event["id"]][event["ph"]] = event
    # 0 -> 1 leaves at 100 ns and arrives before 120 ns; 1 -> 0 at 180 and before 200.
    arrows = {
        (pair["s"]["pid"], pair["f"]["pid"]): (pair["s"]["ts"], pair["f"]["ts"]) for pair in ends.values()
    }
    assert arrows == {(0, 1): (0.100, 0.119), (1, 0): (0.180, 0.199)}
    for pair in ends.values():
        for event in pair.values():
            inside = [
                event["ts"] >= piece["ts"] and event["ts"] <= piece["ts"] + piece["dur"]
                for piece in slices(events, event["pid"])
                if piece["tid"] == event["tid"]
            ]
            assert any(inside)


def test_no_arrow_without_its_other_end(two_stage_run: Path) -> None:
    assert not [event for event in events_of(two_stage_run, [1]) if event["ph"] in "sf"]


def test_counters_follow(two_stage_run: Path) -> None:
    counters = [event for event in events_of(two_stage_run, [0]) if event["ph"] == "C"]
    # Two changes, and a zero from which the first one rises.
    assert [(event["ts"], event["args"]) for event in counters] == [
        (0.0, {"out B/s": 0.0}),
        (0.1, {"out B/s": 1e9}),
        (0.12, {"out B/s": 0.0}),
    ]
    assert {(event["pid"], event["name"]) for event in counters} == {(0, "NVLink")}
    # The port belongs to rank 0: it is not shown when only rank 1 is.
    assert not [event for event in events_of(two_stage_run, [1]) if event["ph"] == "C"]


def test_rows_that_overlap_in_a_lane_get_threads_of_their_own(tmp_path: Path) -> None:
    result = two_stage_result()
    # The second gemm of rank 0 (op 4) now runs from 130 to 260, beside the bmm (110 to 150).
    result.times[0].ready_ps[4] = result.times[0].start_ps[4] = 130_000
    write_run(tmp_path / "run", two_stage_graph(), result, FACTS)
    events = events_of(tmp_path / "run", [0])
    threads = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert list(threads.values()) == ["compute", "compute (2)", "dp", "pp recv", "pp send"]
    lanes = [(event["name"], threads[event["tid"]]) for event in slices(events, 0)]
    # The recv has a lane of its own, whether or not it overlaps the send.
    assert lanes == [
        ("gemm", "compute"),
        ("send pp", "pp send"),
        ("aten::bmm", "compute"),
        ("recv pp", "pp recv"),
        ("gemm", "compute (2)"),
        ("all_reduce dp", "dp"),
    ]


def test_rows_that_take_no_time_are_left_out(tmp_path: Path) -> None:
    result = two_stage_result()
    result.times[1].end_ps[2] = result.times[1].start_ps[2]
    write_run(tmp_path / "run", two_stage_graph(), result, replace(FACTS, warnings=()))
    assert "gelu" not in [event["name"] for event in slices(events_of(tmp_path / "run", [1]), 1)]


def test_default_ranks_are_one_per_stage_within_a_budget(two_stage_run: Path) -> None:
    timeline = Timeline.open(two_stage_run)
    analysis = analyse(timeline)
    assert default_ranks(timeline, analysis.stage_of) == [0, 1]
    # 11 rows on 2 ranks: 5 per rank; a budget of 9 rows leaves room for one rank.
    assert default_ranks(timeline, analysis.stage_of, max_rows=9) == [0]


def test_an_unknown_rank_leaves_no_file(two_stage_run: Path) -> None:
    path = two_stage_run.parent / "trace.json.gz"
    with pytest.raises(InputError, match="rank 7"):
        write_perfetto(Timeline.open(two_stage_run), path, [0, 7])
    assert [entry.name for entry in two_stage_run.parent.iterdir()] == [two_stage_run.name]
