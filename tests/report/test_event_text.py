"""Columns of characters: what they say, read back as JSON."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcore.report.event_text import Events, by_value, integers, microseconds, numbered, numbered_rows

INT64_MAX = 2**63 - 1


@given(st.lists(st.integers(0, INT64_MAX), min_size=1, max_size=20))
def test_times_are_microseconds_with_three_decimals(times: list[int]) -> None:
    texts = [bytes(row).decode() for row in microseconds(np.array(times, dtype=np.int64))]
    assert [text.lstrip(" ") for text in texts] == [f"{time // 1000}.{time % 1000:03d}" for time in times]
    assert len({len(text) for text in texts}) == 1


def test_zeros_within_a_number_stay() -> None:
    # 1,000,000,203 us: three groups of four digits, 10 | 0000 | 0203, in the first of them blanks.
    (row,) = microseconds(np.array([1_000_000_203_004], dtype=np.int64))
    assert bytes(row) == b"  1000000203.004"


def test_no_time_is_negative() -> None:
    with pytest.raises(ValueError, match="negative"):
        microseconds(np.array([3, -1], dtype=np.int64))


@given(st.lists(st.one_of(st.integers(-3, 9), st.integers(-(2**62), 2**62)), max_size=30))
def test_numbers_stand_for_values_in_their_order(values: list[int]) -> None:
    number, first = numbered(np.array(values, dtype=np.int64))
    assert [sorted(set(values)).index(value) for value in values] == number.tolist()
    assert [values[place] for place in first.tolist()] == sorted(set(values))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-(2**62), 2**62), st.integers(0, 1)), min_size=1))
def test_rows_are_numbered_by_all_of_their_columns(rows: list[tuple[int, int, int]]) -> None:
    number, first = numbered_rows([np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)])
    assert [rows[place] for place in first[number].tolist()] == rows
    assert sorted(set(number.tolist())) == list(range(len(set(rows))))


def test_rows_that_are_mixed_alike_are_told_apart() -> None:
    # One row times the mixer is the mixer: (1, 0) and (0, mixer), which is -7046029254386353131 in 64 bits.
    columns = [np.array([1, 0, 1]), np.array([0, -7046029254386353131, 0])]
    number, first = numbered_rows(columns)
    assert number[0] == number[2] != number[1]
    assert sorted(first.tolist()) == [0, 1]


def test_events_begin_alike_and_end_in_columns() -> None:
    # Whole events: heads 1, 0, 1 with the texts of 5, -1 and 12, and times of 1, 20,000.5 and 0.002 us.
    (found,) = Events.alike(
        ['{"of":"a"', '{"of":"b"'],
        np.array([1, 0, 1]),
        by_value(np.array([5, -1, 12]), lambda value: f',"n":{value}' if value >= 0 else ""),
        ',"ts":',
        microseconds(np.array([1_000, 20_000_500, 2])),
        "}",
    )
    assert found.count == 3
    assert json.loads(found.listed()) == [
        {"of": "b", "n": 5, "ts": 1.0},
        {"of": "a", "ts": 20000.5},
        {"of": "b", "n": 12, "ts": 0.002},
    ]


def test_no_events_are_an_empty_list() -> None:
    none = np.zeros(0, dtype=np.int64)
    assert json.loads(Events.of(()).listed()) == []
    assert not list(Events.alike([], none, by_value(none, str), microseconds(none), "}"))


def test_many_events_come_in_pieces() -> None:
    numbers = np.arange(10_000)
    pieces = list(Events.alike(['{"a":1'], 0 * numbers, ',"n":', integers(numbers), "}"))
    assert len(pieces) > 1 and sum(piece.count for piece in pieces) == 10_000
    assert [event["n"] for piece in pieces for event in json.loads(piece.listed())] == numbers.tolist()


def test_whole_numbers() -> None:
    texts = [bytes(row).decode() for row in integers(np.array([0, 9_999, 10_000, 7]))]
    assert texts == ["       0", "    9999", "   10000", "       7"]
