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
