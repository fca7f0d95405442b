"""Values of a profiler's JSON as numbers, whatever a version writes them as."""

from __future__ import annotations

import re
from typing import Any

_TRAILING_NUMBER = re.compile(r"\d{1,9}$")


def arguments(event: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an event; empty where it has none."""
    args = event.get("args")
    return args if type(args) is dict else {}


def whole(value: object, default: int) -> int:
    """``value`` as an integer of 62 bits, ``default`` where it is none."""
    if type(value) is not int:
        try:
            value = int(float(value)) if isinstance(value, str) else default
        except (ValueError, OverflowError):
            return default
    return value if -(1 << 62) < value < 1 << 62 else default


def product(value: object) -> int:
    """The number of blocks (threads) of a grid (block) written [x, y, z]; 0 where it is none."""
    if type(value) is not list or not 1 <= len(value) <= 3:
        return 0
    total = 1
    for size in value:
        total *= whole(size, 0)
    return total if 0 < total < 1 << 62 else 0


def numbered(value: object) -> int:
    """The number of a stream or device, also where it is written "stream 7"; 0 where there is none."""
    if type(value) is str:
        found = _TRAILING_NUMBER.search(value)
        return int(found.group()) if found is not None else 0
    return whole(value, 0)
