"""Perfetto's own format: packets decoded by hand, against the events of the JSON form."""

from __future__ import annotations

import gzip
import json
import struct
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from simcore.report import write_perfetto
from simcore.timeline import Timeline


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
            yield key >> 3, value
        else:
            length, at = (8, at) if key & 7 == 1 else varint(data, at)
            yield key >> 3, data[at : at + length]
            at += length


def one(data: bytes) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = defaultdict(list)
    for number, value in fields(data):
        found[number].append(value)
    return found


def test_packets_say_what_the_json_says(two_stage_run: Path) -> None:
    timeline = Timeline.open(two_stage_run)
    packed, plain = two_stage_run.parent / "t.pftrace", two_stage_run.parent / "t.json.gz"
    assert write_perfetto(timeline, packed, [0, 1]) == write_perfetto(timeline, plain, [0, 1])
    events = json.loads(gzip.decompress(plain.read_bytes()))["traceEvents"]
    kinds: Counter[int] = Counter()
    open_slices: dict[int, tuple[int, str]] = {}
    slices: list[tuple[str, str, int, int]] = []
    arrows: dict[int, list[tuple[str, int]]] = defaultdict(list)
    tracks: dict[int, str] = {}
    values: list[float] = []
    for number, content in fields(packed.read_bytes()):
        assert number == 1
        packet = one(content)
        assert packet[10] == [1]
        for descriptor in packet[60]:
            told = one(descriptor)
            tracks[told[1][0]] = one(told[4][0])[5][0].decode() if told[4] else ""
        for content_of_event in packet[11]:
            event, time = one(content_of_event), packet[8][0]
            kind, track = event[9][0], event[11][0]
            kinds[kind] += 1
            if kind == 1:
                open_slices[track] = time, event[23][0].decode()
            elif kind == 2:
                start, name = open_slices.pop(track)
                slices.append((tracks[track], name, start, time - start))
            elif kind == 4:
                values.append(struct.unpack("<d", event[44][0])[0])
            for flow in event[47]:
                arrows[flow].append(("leaves", time))
            for flow in event[48]:
                arrows[flow].append(("arrives", time))
    threads = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    expected = [
        (threads[e["tid"]], e["name"], round(1000 * e["ts"]), round(1000 * e["dur"]))
        for e in events
        if e["ph"] == "X"
    ]
    assert sorted(slices) == sorted(expected)
    assert not open_slices
    # 0 -> 1 leaves at 100 ns and arrives just before 120; 1 -> 0 at 180 and before 200.
    assert sorted(map(sorted, arrows.values())) == [
        [("arrives", 119), ("leaves", 100)],
        [("arrives", 199), ("leaves", 180)],
    ]
    assert kinds[3] == 2 + sum(e["ph"] == "i" for e in events)  # marks of arrival
    assert values == [float(value) for e in events if e["ph"] == "C" for value in e["args"].values()]
