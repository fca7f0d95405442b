"""How often rows are looked up: the k-th most popular of R in proportion to ``k ** -zipf`` (0: all alike)."""

from __future__ import annotations

from functools import lru_cache

from simcore.elementary import exp, log, power


@lru_cache(maxsize=1 << 12)
def share_of_first(count: float, rows: int, zipf: float) -> float:
    """Share of all lookups that the ``count`` most popular of ``rows`` rows have."""
    if count >= rows:
        return 1.0
    return _harmonic(count, zipf) / _harmonic(rows, zipf)


def _harmonic(count: float, zipf: float) -> float:
    """Sum of ``k ** -zipf`` up to ``count`` (Euler and Maclaurin, to the first derivative)."""
    if count < 1:
        return max(0.0, count)
    area = log(count) if zipf == 1 else (power(count, 1 - zipf) - 1) / (1 - zipf)
    last = power(count, -zipf)
    return area + (1 + last) / 2 + zipf * (1 - last / count) / 12


@lru_cache(maxsize=1 << 12)
def distinct_rows(lookups: float, rows: int, zipf: float) -> float:
    """Different rows among so many lookups, on average."""
    if not zipf or rows < 2:
        return rows * (1 - exp(-lookups / rows))
    # Rows in geometric bands of alike popularity.
    whole, found, low = _harmonic(rows, zipf), 0.0, 1
    while low <= rows:
        high = min(rows, low + low // 8)
        count = high - low + 1
        each = power((low + high) / 2, -zipf) / whole
        found += count * (1 - exp(-lookups * each))
        low = high + 1
    return min(found, lookups)


def rows_above(count: float, lookups: float, rows: int, zipf: float) -> int:
    """How many rows are looked up more than ``count`` times among ``lookups``."""
    share = count / lookups
    if not zipf:
        return rows if 1 / rows > share else 0
    found = power(1 / (share * _harmonic(rows, zipf)), 1 / zipf)
    return min(rows, int(found))
