"""Time and size units: integer picoseconds and bytes inside, unit suffixes in every name.

Integer time makes two runs comparable bit for bit: there is no rounding that depends on the
order of additions.  Conversions from seconds round to the nearest picosecond.

Numbers that files and users give carry a unit and are scaled in decimal arithmetic, so that ``2.8 us`` is the
double nearest to 2.8e-6.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Final

from simcore.errors import InputError, nearest
from simcore.records import dataclass

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


def room_unit(num_bytes: int) -> tuple[int, str]:
    """In what memory of GPUs is told: GiB, TiB from 100,000 of these on (of jobs that no GPU can hold)."""
    return (1024 * GIB, "TiB") if abs(num_bytes) >= 100_000 * GIB else (GIB, "GiB")


_DECIMAL_PREFIXES: Final = {"": 0, "K": 3, "M": 6, "G": 9, "T": 12, "P": 15}
_BINARY_PREFIXES: Final = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4}


def what_counts(tokens_per_sample: int) -> str:
    """What throughput counts: "tokens", or "samples" where a sample has but one."""
    return "samples" if tokens_per_sample == 1 else "tokens"


def _scaled(suffix: str, factor: Decimal = Decimal(1)) -> dict[str, Decimal]:
    return {f"{p}{suffix}": factor * 10**power for p, power in _DECIMAL_PREFIXES.items()}


def _binary(suffix: str) -> dict[str, Decimal]:
    return {f"{p}{suffix}": Decimal(1024**power) for p, power in _BINARY_PREFIXES.items()}


#: Dimension -> unit -> factor to the SI unit that field names end in (first unit of each dimension).
UNITS: Final[dict[str, dict[str, Decimal]]] = {
    "count": {"count": Decimal(1)},
    "ratio": {"ratio": Decimal(1), "%": Decimal("0.01")},
    "time": {"s": Decimal(1), "ms": Decimal("1e-3"), "us": Decimal("1e-6"), "ns": Decimal("1e-9")},
    "size": _scaled("B") | _binary("B"),
    "bandwidth": _scaled("B/s")
    | _binary("B/s")
    | _scaled("b/s", Decimal("0.125"))
    | _scaled("bps", Decimal("0.125")),
    "compute": _scaled("flop/s") | _scaled("FLOP/s"),
    "frequency": _scaled("Hz"),
    "power": _scaled("W"),
}

_QUANTITY = re.compile(r"\s*([-+]?(?:[\d_]*\.?[\d_]+(?:[eE][-+]?\d+)?|nan|inf(?:inity)?))\s*(\S*)\s*", re.I)


@dataclass(frozen=True)
class Number:
    """What a field accepts: its dimension, whether it is whole, its bounds (in the SI unit)."""

    dimension: str
    integer: bool = False
    zero_allowed: bool = False
    at_least: int | None = None
    at_most: int | None = None

    def from_value(self, value: object, unit: str, where: str) -> float:
        """``value`` in ``unit`` as SI.  InputError (prefixed ``where``) if it is no such quantity."""
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
            raise InputError(f"{where}: expected a number, got {value!r}")
        known = UNITS[self.dimension]
        if unit not in known:
            raise InputError(f"{where}: {unit!r} is not a unit of {self.dimension}{nearest(unit, known)}")
        exact = value if isinstance(value, Decimal) else Decimal(str(value))
        return self._checked(exact, known[unit], f"{value} {unit}", where)

    def from_text(self, text: str, where: str) -> float:
        """``"3e12"`` (SI), ``"400Gb/s"``, ``"80GiB"``, ``"2 us"`` as SI.  InputError if it is none."""
        match = _QUANTITY.fullmatch(text)
        if match is None:
            raise InputError(f"{where}: expected a number such as {self.example}, got {text!r}")
        number, unit = match.groups()
        try:
            exact = Decimal(number)
        except InvalidOperation:
            raise InputError(f"{where}: expected a number such as {self.example}, got {text!r}") from None
        return self.from_value(exact, unit or self.si_unit, where)

    @property
    def si_unit(self) -> str:
        """The unit that a bare number has."""
        return next(iter(UNITS[self.dimension]))

    @property
    def example(self) -> str:
        """A value that this field would accept, for messages."""
        examples = {
            "count": "8",
            "ratio": "0.9",
            "time": "2us",
            "size": "80GiB",
            "bandwidth": "400Gb/s",
            "compute": "989Tflop/s",
            "frequency": "1.98GHz",
            "power": "700W",
        }
        return repr(examples[self.dimension])

    def _checked(self, exact: Decimal, factor: Decimal, shown: str, where: str) -> float:
        if not exact.is_finite():
            raise InputError(f"{where}: must be a finite number, got {shown}")
        if exact < 0 or (exact == 0 and not self.zero_allowed):
            raise InputError(
                f"{where}: must be {'0 or more' if self.zero_allowed else 'positive'}, got {shown}"
            )
        scaled = exact * factor
        if self.integer and scaled != scaled.to_integral_value():
            raise InputError(f"{where}: must be a whole number, got {shown}")
        if self.at_most is not None and scaled > self.at_most:
            raise InputError(f"{where}: must be at most {self.at_most}, got {shown}")
        if self.at_least is not None and scaled < self.at_least:
            raise InputError(f"{where}: must be at least {self.at_least}, got {shown}")
        result = float(scaled)
        if result in (0.0, float("inf")) and exact != 0:
            raise InputError(f"{where}: {shown} is outside the range of a double")
        return int(scaled) if self.integer else result
