"""Time stamps of a Kineto trace as columns: whole us and ps beside them, without loss."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from simcore.graph.ops import IntArray
from simcore.outside import quoted
from simcore.units import PS_PER_US
from workloads.imports.fields import ABSENT, RefusedError
from workloads.imports.kineto.events import TraceEvent
from workloads.imports.recorded import MAX_SPAN_S

_CLOCK_PS = PS_PER_US  # how much too early an end may have been read: the coarsest resolution
_MAX_SPAN_US = MAX_SPAN_S * 10**6
_MAX_CLOCK_US = 10**17  # three thousand years: no clock of a computer shows more
_MAX_DIGITS = 400  # of a time, written out: a double has up to 309 before the point
_MAX_PLAIN = 30  # characters of a time that is read as a plain decimal: such have at most 38 digits
_EXPONENT = re.compile(r"[eE]")


class EventClock:
    """Times after a trace's first one, ``origin_us``, which is of event ``first_event``; None before it.

    ``whole``: no time so far had a fraction of a us.
    """

    def __init__(self) -> None:
        self.origin_us: int | None = None
        self.first_event = 0
        self.whole = True

    def begin(self, number: int, event: TraceEvent) -> bool:
        """Take the time of event ``number`` for the origin; False if it has none that a clock shows."""
        try:
            start = int(self._times([event.ts], "ts")[0][0])
        except RefusedError:
            return False
        if not -_MAX_CLOCK_US < start < _MAX_CLOCK_US:
            return False
        self.origin_us, self.first_event = start, number
        return True

    def go_on(self, other: EventClock) -> None:
        """Count from where another clock has begun."""
        self.origin_us, self.first_event = other.origin_us, other.first_event

    def intervals(self, events: Sequence[TraceEvent]) -> tuple[IntArray, IntArray]:
        """Starts and ends in ps after the origin.  RefusedError for a time that cannot be."""
        start_us, start_ps = self._times([event.ts for event in events], "ts")
        wrong = (start_us <= -_MAX_CLOCK_US) | (start_us >= _MAX_CLOCK_US)
        if wrong.any():
            raise RefusedError(f"begins at {start_us[wrong][0]:.3g} us: no clock shows that")
        length_us, length_ps = self._times([event.dur for event in events], "dur")
        origin = self.origin_us or 0
        start_us = start_us.astype(np.int64) - origin
        wrong = (start_us < -_MAX_SPAN_US) | (start_us > _MAX_SPAN_US)
        if wrong.any():
            days, first = abs(start_us[wrong][0]) / 8.64e10, f"event {self.first_event} at {origin} us"
            raise RefusedError(f"begins {days:.3g} days from the first event ({first})")
        wrong = (length_us < -_CLOCK_PS) | (length_us > _MAX_SPAN_US)  # else whole ps have no overflow
        if not wrong.any():
            length = length_us.astype(np.int64) * PS_PER_US + length_ps
            wrong = (length < -_CLOCK_PS) | (length > _MAX_SPAN_US * PS_PER_US)
        if wrong.any():
            lasts = int(length_us[wrong][0]) * PS_PER_US + int(length_ps[wrong][0])
            raise RefusedError(f"lasts {lasts / PS_PER_US:.9g} us")
        start = start_us * PS_PER_US + start_ps
        return start, start + np.maximum(length, 0)  # clocks are read one after the other: it took no time

    def _times(self, values: list[Any], key: str) -> tuple[IntArray, IntArray]:
        """Whole us, of any size in a column of objects, and ps to be added."""
        kinds = set(map(type, values))
        if kinds == {int}:
            return _integers(values), np.zeros(len(values), dtype=np.int64)
        if kinds <= {int, str}:
            texts = values if int not in kinds else list(map(str, values))
            together = "".join(texts)
            self.whole = self.whole and "." not in together
            if max(map(len, texts)) < _MAX_PLAIN and not _EXPONENT.search(together):
                try:
                    return _decimals(texts, together)
                except ValueError:  # no decimal, or one with more digits
                    pass
        pairs = [_time(value, key) for value in values]
        return _integers([us for us, _ in pairs]), np.array([ps for _, ps in pairs], dtype=np.int64)


def _integers(values: list[int]) -> IntArray:
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        return np.array(values, dtype=np.object_)


def _decimals(texts: list[str], together: str) -> tuple[IntArray, IntArray]:
    """Decimals of up to six digits behind the point.  ValueError for anything else."""
    import pyarrow as pa
    from pyarrow import compute

    from simcore.graph.arrow import values_of

    if not together.isascii():
        raise ValueError(together)
    ends = np.cumsum([0, *map(len, texts)], dtype=np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(together.encode())]
    found = pa.Array.from_buffers(pa.string(), len(texts), buffers).cast(pa.decimal128(38, 6))
    whole = compute.cast(found, options=compute.CastOptions(pa.int64(), allow_decimal_truncate=True))
    us = values_of(whole)
    millionths = np.frombuffer(found.buffers()[1], dtype="<i8")[::2]  # their lower halves
    ps = millionths - us * PS_PER_US  # modulo 2^64: less than one us is left
    return us - (ps < 0), ps + PS_PER_US * (ps < 0)


def _time(value: Any, key: str) -> tuple[int, int]:
    """One time stamp that is no plain decimal; a fraction beyond ps is cut off."""
    if type(value) is int:
        return value, 0
    try:
        if type(value) is str and len(value) < _MAX_DIGITS:
            whole, point, fraction = value.partition(".")
            if point and fraction.isdigit():
                part = int(fraction[:6].ljust(6, "0"))
                return (int(whole), part) if whole[0] != "-" else (int(whole) - 1, PS_PER_US - part)
            exact = float(value)
            return int(exact // 1), int(exact % 1 * PS_PER_US)
    except (ValueError, OverflowError, IndexError):
        pass
    raise RefusedError(f"has no {key}" if value is ABSENT else f"has {key} {quoted(value)}, not a time in us")
