"""Perfetto's own format: trace events as TrackEvent packets, written without generated code.

The schema is protos/perfetto/trace/perfetto_trace.proto of Perfetto; the numbers below are its field numbers.
Compared with JSON the file is typed, its arrows belong to slices, and counters know their units.
"""

from __future__ import annotations

import json
import struct
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from simcore.report.event_text import Events

_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4  # TrackEvent.Type
_SEQUENCE = 1
_PROCESS_TRACK, _THREAD_TRACK, _COUNTER_TRACK = (n << 40 for n in (1, 2, 3))  # uuids: kind and number


def perfetto_packets(batches: Iterable[Events]) -> Iterator[bytes]:
    """The packets of a trace, from batches of trace events in JSON.  Concatenated they are a trace file."""
    events = [event for batch in batches for event in json.loads(batch.listed())]
    arrows = _Arrows(event for event in events if event["ph"] in "sf")
    counters: dict[tuple[int, str, str], int] = {}
    for event in events:
        kind = event["ph"]
        if kind == "M":
            yield from _descriptor(event)
        elif kind == "X":
            yield from _slice(event, arrows)
        elif kind == "i":
            yield _event(_ns(event["ts"]), _INSTANT, _THREAD_TRACK + event["tid"], _text(23, event["name"]))
        elif kind == "C":
            yield from _counter(event, counters)


def _counter(event: dict[str, Any], known: dict[tuple[int, str, str], int]) -> Iterator[bytes]:
    """Values of a counter, a track each: ``out B/s`` of ``NVLink`` is the track ``NVLink out`` in B/s."""
    for value_name, value in event["args"].items():
        key = event["pid"], event["name"], value_name
        if key not in known:
            known[key] = _COUNTER_TRACK + len(known)
            which, _, unit = value_name.rpartition(" ")
            name = f"{event['name']} {which}".rstrip()
            yield _packet(
                _message(
                    60, _int(1, known[key]) + _text(2, name)
                    + _int(5, _PROCESS_TRACK + event["pid"]) + _message(8, _text(6, unit)),
                )
            )  # fmt: skip
        yield _event(_ns(event["ts"]), _COUNTER, known[key], _double(44, float(value)))


class _Arrows:
    """Arrows by thread, to be found by the slice that they leave from or arrive in."""

    def __init__(self, events: Iterable[dict[str, Any]]) -> None:
        self._by_thread: dict[int, list[tuple[int, int, bool]]] = defaultdict(list)
        for event in events:
            self._by_thread[event["tid"]].append((_ns(event["ts"]), event["id"] + 1, event["ph"] == "s"))
        for found in self._by_thread.values():
            found.sort()

    def within(self, thread: int, start: int, end: int) -> list[tuple[int, int, bool]]:
        """(time, number, whether it leaves) of the arrows at the slice from ``start`` to before ``end``."""
        found = self._by_thread.get(thread, [])
        return found[bisect_right(found, (start,)) : bisect_right(found, (end,))]


def _descriptor(event: dict[str, Any]) -> Iterator[bytes]:
    pid, name = event["pid"], event["args"].get("name")
    if event["name"] == "process_name":
        process = _int(1, pid) + _text(6, name)
        yield _packet(_message(60, _int(1, _PROCESS_TRACK + pid) + _message(3, process)))
    elif event["name"] == "thread_name":
        thread = _int(1, pid) + _int(2, event["tid"]) + _text(5, name)
        track = _int(1, _THREAD_TRACK + event["tid"]) + _int(5, _PROCESS_TRACK + pid) + _message(4, thread)
        yield _packet(_message(60, track))


def _slice(event: dict[str, Any], arrows: _Arrows) -> Iterator[bytes]:
    start = _ns(event["ts"])
    end = start + _ns(event["dur"])
    track = _THREAD_TRACK + event["tid"]
    notes = b"".join(_message(4, _annotation(name, value)) for name, value in event["args"].items())
    about = _text(22, event["cat"]) + _text(23, event["name"]) + notes
    ends = arrows.within(event["tid"], start, end)
    leaving = b"".join(_fixed64(47, number) for _, number, leaves in ends if leaves)
    yield _event(start, _BEGIN, track, about + leaving)
    # An arrow ends where a packet is, and a recv may begin before its send: a mark of its own.
    for time, number, leaves in ends:
        if not leaves:
            yield _event(time, _INSTANT, track, _text(23, "arrives") + _fixed64(48, number))
    yield _event(end, _END, track, b"")


def _annotation(name: str, value: object) -> bytes:
    if isinstance(value, int):
        return _text(10, name) + _int(4, value)
    return _text(10, name) + (_double(5, value) if isinstance(value, float) else _text(6, str(value)))


def _event(time_ns: int, kind: int, track: int, fields: bytes) -> bytes:
    return _packet(_int(8, time_ns) + _message(11, _int(9, kind) + _int(11, track) + fields))


def _packet(fields: bytes) -> bytes:
    return _message(1, _int(10, _SEQUENCE) + fields)


def _ns(time_us: float) -> int:
    return round(time_us * 1000)


# -- the wire format (protobuf.dev/programming-guides/encoding) ------------------------------------


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1  # negative numbers as two's complement
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _int(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _fixed64(number: int, value: int) -> bytes:
    return _varint(number << 3 | 1) + struct.pack("<Q", value)


def _double(number: int, value: float) -> bytes:
    return _varint(number << 3 | 1) + struct.pack("<d", value)


def _message(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _text(number: int, value: str) -> bytes:
    return _message(number, value.encode())
