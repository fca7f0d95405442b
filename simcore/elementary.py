"""exp, log and powers that have the same bits on every machine, and sums that have on every Python.

Note [Same bits everywhere]
    IEEE 754 fixes the results of + - * / and sqrt, but not of exp, log and pow: they come from the C library,
    and numpy's from code that it picks by the CPU (AVX-512 or not).  Last bits differ, and a kernel's
    picosecond now and then with them.  From Python 3.12 on, ``sum()`` of floats compensates for rounding.
    Here are only operations that IEEE 754 fixes, in a fixed order.  Errors stay below two units in the last
    place, those of :func:`power` below ``2 + |y log x|``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import reduce
from operator import add
from typing import Any, Final

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

#: log 2 in two parts; the first has so few bits that its product with an exponent is exact (fdlibm, e_exp.c).
_LN2_HIGH: Final = float.fromhex("0x1.62e42feep-1")
_LN2_LOW: Final = float.fromhex("0x1.a39ef35793c76p-33")
_PER_LN2: Final = float.fromhex("0x1.71547652b82fep+0")
_SQRT_HALF: Final = float.fromhex("0x1.6a09e667f3bcdp-1")
#: exp r = 1 + r + r^2 (1/2! + r/3! + ...): |r| <= log(2) / 2 makes the next one less than 2^-58.
_EXP: Final = tuple(1.0 / math.factorial(n) for n in range(14, 1, -1))
#: log(1 + f) = f - s (f - s^2 (2/3 + 2/5 s^2 + ...)) with s = f / (2 + f), |s| <= 0.172 (fdlibm, e_log.c).
_LOG: Final = tuple(2.0 / n for n in range(23, 2, -2))
#: Beyond, exp is 0 or infinite.
_MOST: Final = 745.2


def exp(x: float) -> float:
    """Euler's number to the ``x``; 0 and infinity where a float cannot tell it from them."""
    if not -_MOST < x < _MOST:
        return x if math.isnan(x) else 0.0 if x < 0 else math.inf
    twos = round(x * _PER_LN2)
    try:
        return math.ldexp(_exp_near_0(x - twos * _LN2_HIGH, twos * _LN2_LOW), twos)
    except OverflowError:
        return math.inf


def exp_of(x: FloatArray) -> FloatArray:
    """:func:`exp` of each element, to the bit."""
    within = np.clip(x, -_MOST, _MOST)
    twos = np.rint(within * _PER_LN2)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        found = np.ldexp(_exp_near_0(within - twos * _LN2_HIGH, twos * _LN2_LOW), twos.astype(np.int32))
    return np.asarray(found)


def log(x: float) -> float:
    """The natural logarithm of ``x`` > 0."""
    mantissa, twos = math.frexp(x)
    if mantissa < _SQRT_HALF:
        mantissa, twos = 2.0 * mantissa, twos - 1
    found: float = _log(mantissa - 1.0, twos)
    return found


def log_of(x: FloatArray) -> FloatArray:
    """:func:`log` of each element, to the bit; NaN where it is NaN."""
    mantissa, twos = np.frexp(x)
    small = mantissa < _SQRT_HALF
    mantissa, twos = np.where(small, 2.0 * mantissa, mantissa), np.where(small, twos - 1, twos)
    return np.asarray(_log(mantissa - 1.0, twos))


def log1p(x: float) -> float:
    """The logarithm of 1 + ``x``, ``x`` >= 0, also of one that is lost in the sum."""
    above = 1.0 + x
    return log(above) + (x - (above - 1.0)) / above


def power(x: float, y: float) -> float:
    """``x`` >= 0 to the ``y``; a whole ``y`` multiplies."""
    whole = int(y)
    if whole == y:
        found, square = 1.0, x
        for bit in reversed(f"{abs(whole):b}"):
            if bit == "1":
                found *= square
            square *= square
        return found if whole >= 0 else 1.0 / found
    return exp(y * log(x)) if x else 0.0


def plain_sum(terms: Iterable[float]) -> float:
    """The terms added up from the first to the last."""
    return reduce(add, terms, 0.0)


def _exp_near_0(high: Any, low: Any) -> Any:
    """The exponential of ``high - low``, a small difference."""
    rest = high - low
    return 1.0 + (high + (rest * rest * _horner(_EXP, rest) - low))


def _log(f: Any, twos: Any) -> Any:
    """The logarithm of ``(1 + f) * 2 ** twos``."""
    s, half = f / (2.0 + f), 0.5 * f * f
    square = s * s
    return twos * _LN2_HIGH - ((half - (s * (half + square * _horner(_LOG, square)) + twos * _LN2_LOW)) - f)


def _horner(coefficients: tuple[float, ...], x: Any) -> Any:
    found = coefficients[0]
    for coefficient in coefficients[1:]:
        found = found * x + coefficient
    return found
