"""Time and size units: integer picoseconds and bytes inside, unit suffixes in every name.

Integer time makes two runs comparable bit for bit: there is no rounding that depends on the
order of additions.  Conversions from seconds round to the nearest picosecond.
"""

from __future__ import annotations

from typing import Final

PS_PER_NS: Final = 1_000
PS_PER_US: Final = 1_000_000
PS_PER_MS: Final = 1_000_000_000
PS_PER_S: Final = 1_000_000_000_000

KIB: Final = 1024
MIB: Final = 1024**2
GIB: Final = 1024**3


def ps_from_s(seconds: float) -> int:
    """Seconds to whole picoseconds (nearest)."""
    return round(seconds * PS_PER_S)


def ps_from_us(microseconds: float) -> int:
    """Microseconds to whole picoseconds (nearest)."""
    return round(microseconds * PS_PER_US)


def s_from_ps(picoseconds: int | float) -> float:
    """Picoseconds to seconds."""
    return picoseconds / PS_PER_S


def us_from_ps(picoseconds: int | float) -> float:
    """Picoseconds to microseconds."""
    return picoseconds / PS_PER_US


def format_time(picoseconds: int | float) -> str:
    """A time with the unit that reads best: ``1.234 s``, ``12.3 ms``, ``45.6 us``, ``7 ns``."""
    value = abs(picoseconds)
    for unit, scale in (("s", PS_PER_S), ("ms", PS_PER_MS), ("us", PS_PER_US), ("ns", PS_PER_NS)):
        if value >= scale:
            return f"{picoseconds / scale:.4g} {unit}"
    return f"{picoseconds:g} ps"


def format_bytes(num_bytes: int | float) -> str:
    """A size with a binary unit: ``71.3 GiB``, ``4 MiB``, ``12 B``."""
    value = float(num_bytes)
    for unit, scale in (("TiB", 1024**4), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(value) >= scale:
            return f"{value / scale:.4g} {unit}"
    return f"{value:g} B"
