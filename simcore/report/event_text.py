"""Trace events as JSON text, many at a time.

Note [Speed of the export]
    A rank has some ten thousand rows but only some hundred that differ in more than times, microbatch and
    layer: what is constant about an event is formatted once for all that share it.  The rest is written for
    all events at once, as columns of characters.  A column is as wide as its widest entry; the others have
    blanks, which JSON allows around a number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

from simcore.records import dataclass

IntArray = npt.NDArray[np.int64]

#: Characters, a row for each event.
Characters = npt.NDArray[np.uint8]

_GROUP = 10_000  # numbers are written four digits at a time
_TOGETHER = 4096  # events of one piece of text
_MIXER = np.uint64(0x9E3779B97F4A7C15)  # odd, and far from a power of two: 2^64 over the golden ratio


@dataclass(frozen=True)
class Events:
    """Trace events as members of a JSON list: each, the first too, after a comma and a new line."""

    text: bytes
    count: int

    @classmethod
    def of(cls, events: Iterable[str]) -> Events:
        """Events that were written one by one."""
        found = list(events)
        return cls("".join(f",\n{event}" for event in found).encode(), len(found))

    @classmethod
    def alike(cls, heads: Sequence[str], head_of: IntArray, *ends: Characters | str) -> Iterator[Events]:
        """Events that begin as one of ``heads`` (``head_of`` says which) and end in columns, left to right.

        A column is text that all have in common, or the characters of each.  Some thousand at a time: a
        megabyte of text stays in the processor's cache until it is compressed.
        """
        beginnings = [f",\n{head}".encode() for head in heads]
        for begin in range(0, len(head_of), _TOGETHER):
            some = slice(begin, begin + _TOGETHER)
            numbers = head_of[some].tolist()
            pieces = [b""] * (2 * len(numbers))
            pieces[::2] = [beginnings[number] for number in numbers]
            columns = [column if isinstance(column, str) else column[some] for column in ends]
            pieces[1::2] = _side_by_side(len(numbers), columns)
            yield cls(b"".join(pieces), len(numbers))

    def listed(self) -> bytes:
        """The JSON list of these events alone."""
        return b"[" + self.text[2:] + b"]"


def microseconds(nanoseconds: IntArray) -> Characters:
    """Times in us with three decimals.  ValueError for a negative one."""
    whole = nanoseconds // 1000
    before = integers(whole)
    return np.concatenate([before, _tables()[1][nanoseconds - 1000 * whole].view(np.uint8).reshape(-1, 4)], 1)


def integers(values: IntArray) -> Characters:
    """Whole numbers.  ValueError for a negative one."""
    if values.min(initial=0) < 0:
        raise ValueError("a number is negative")
    groups, _ = _tables()
    whole = values
    columns: list[npt.NDArray[np.uint32]] = []
    ended = np.zeros(len(whole), dtype=np.bool_)
    while not columns or not ended.all():
        higher = whole // _GROUP
        entry = whole - _GROUP * higher
        entry[higher == 0] += _GROUP
        entry[ended] = 2 * _GROUP
        columns.append(groups[entry])
        ended, whole = higher == 0, higher
    return np.stack(columns[::-1], axis=1).view(np.uint8)


@cache
def _tables() -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    """Four characters each: 0 to 9,999 with zeros, the same with blanks before it, blanks; .000 to .999."""
    number = np.arange(_GROUP)[:, None]
    digits = number // [1000, 100, 10, 1] % 10 + ord("0")
    led = np.where(number >= [1000, 100, 10, 0], digits, ord(" "))
    groups = np.concatenate([digits, led, np.full((1, 4), ord(" "))]).astype(np.uint8)
    decimals = digits[:1000].astype(np.uint8)
    decimals[:, 0] = ord(".")
    return groups.view(np.uint32).ravel(), decimals.view(np.uint32).ravel()


def by_value(values: IntArray, text: Callable[[int], str]) -> Characters:
    """The text of each value, blanks behind the shorter ones."""
    number, first = numbered(values)
    texts = [text(value) for value in values[first].tolist()]
    width = max(map(len, texts), default=0)
    table = np.frombuffer("".join(entry.ljust(width) for entry in texts).encode("ascii"), dtype=np.uint8)
    return table.reshape(len(texts), width)[number]


def numbered(values: npt.NDArray[np.integer]) -> tuple[IntArray, IntArray]:
    """Equal values as equal numbers, from 0 without gaps in their order, and a place of each."""
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    if high - low >= 8 * len(values):
        _, first, number = np.unique(values, return_index=True, return_inverse=True)
        return number.astype(np.int64, copy=False), first.astype(np.int64, copy=False)
    place = np.full(high - low + 1, -1, dtype=np.int64)  # a table is quicker than sorting
    place[values - low] = np.arange(len(values))
    used = place >= 0
    return (np.cumsum(used) - 1)[values - low], place[used]


def numbered_rows(columns: Sequence[npt.NDArray[np.integer]]) -> tuple[IntArray, IntArray]:
    """Rows that are equal in all columns as equal numbers, from 0 without gaps, and a place of each."""
    mixed = np.zeros(len(columns[0]), dtype=np.uint64)
    for column in columns:
        mixed *= _MIXER
        mixed += column.astype(np.uint64)
    number, first = numbered(mixed.view(np.int64))
    if all((column == column[first][number]).all() for column in columns):
        return number, first
    _, first, number = np.unique(np.stack(columns, 1), axis=0, return_index=True, return_inverse=True)
    return number.reshape(-1), first  # rows that differ and are mixed alike


def _side_by_side(count: int, columns: Sequence[Characters | str]) -> list[bytes]:
    """Rows of characters from columns; the last one ends in no NUL, which would be lost."""
    parts = [
        np.frombuffer(column.encode("ascii"), dtype=np.uint8)[None, :] if isinstance(column, str) else column
        for column in columns
    ]
    rows = np.empty((count, sum(part.shape[1] for part in parts)), dtype=np.uint8)
    end = 0
    for part in parts:
        begin, end = end, end + part.shape[1]
        rows[:, begin:end] = part
    lines: list[bytes] = rows.view(f"S{end}").ravel().tolist()
    return lines
