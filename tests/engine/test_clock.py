"""The clock of a simulation."""

from __future__ import annotations

import pytest

from simcore.clock import LAST_PS, Clock, Movable
from simcore.errors import InputError


def test_time_ends_before_64_bits_do() -> None:
    clock = Clock()
    Movable(clock).set(LAST_PS)
    with pytest.raises(InputError, match="more than 53 days"):
        Movable(clock).set(LAST_PS + 1)
    clock.drain()
    assert clock.now == LAST_PS


def test_what_is_moved_takes_its_turn_by_when_it_was_last_set():
    clock, happened = Clock(), []

    class Noted(Movable):
        def due(self):
            happened.append((self, clock.now))

    first, second, third = Noted(clock), Noted(clock), Noted(clock)
    first.set(10)
    second.set(20)
    first.set(20)  # later than before, and after the second by now
    third.set(30)
    third.unset()
    third.set(40)
    third.set(5)  # earlier than before
    clock.drain()
    assert happened == [(third, 5), (second, 20), (first, 20)]
