"""Fields of events that recordings tell, by type: what is there is what it should be, or refused.

Functions here know the field, not the event: their :class:`WrongFieldError` is caught where file and event
are known, so that a million right ones cost nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from simcore.graph.ops import IntArray
from simcore.outside import quoted

_TRAILING_NUMBER = re.compile(r"\d{1,9}$")
_HALF = re.compile("[\ud800-\udfff]")
_MOST = 1 << 62
#: In place of a field that an event lacks, where null means something else.
ABSENT: Final = msgspec.UNSET


class RefusedError(Exception):
    """An event must not pass; says why."""


class WrongFieldError(RefusedError):
    """A field is not of its type; says which one and what it is."""

    def __init__(self, key: str, value: object, wanted: str) -> None:
        super().__init__(f"has no {key}" if value is None else f"has {key} {quoted(value)}, {wanted}")


def whole(fields: Mapping[str, Any], key: str, default: int) -> int:
    """An integer of 62 bits, however a version writes numbers; ``default`` where there is none."""
    return whole_of(fields.get(key, default), key, default)


def whole_of(value: Any, key: str, default: int) -> int:
    """:func:`whole`, of the field's value; None where there is none."""
    if type(value) is not int:
        if value is None or value == "":
            return default
        try:
            found = int(float(value)) if type(value) is str or type(value) is float else _MOST
        except (ValueError, OverflowError):
            found = _MOST
    else:
        found = value
    if -_MOST < found < _MOST:
        return found
    raise WrongFieldError(key, value, "no whole number")


def text(fields: Mapping[str, Any], key: str, default: str | None = None) -> str:
    """A text; ``default`` where there is none, and wrong where that is None."""
    return text_of(fields.get(key), key, default)


def text_of(value: Any, key: str, default: str | None = None) -> str:
    """:func:`text`, of the field's value; None where there is none."""
    if type(value) is str:
        if value.isascii() or value.isprintable() or not _HALF.search(value):
            return value
        raise WrongFieldError(key, value, "which holds half of a surrogate pair")
    if value is None and default is not None:
        return default
    raise WrongFieldError(key, value, "no text")


def named(fields: Mapping[str, Any], key: str) -> int | str | None:
    """What names a process or a thread: a number or a text, if anything."""
    value = fields.get(key)
    if value is None or type(value) is int or type(value) is str:
        return value
    raise WrongFieldError(key, value, "no number or name")


def table(fields: Mapping[str, Any], key: str) -> dict[str, Any]:
    """An object; empty where there is none."""
    value = fields.get(key)
    if type(value) is dict:
        return value
    if value is None:
        return {}
    raise WrongFieldError(key, value, "no object")


def entries(fields: Mapping[str, Any], key: str, what: str, fits: Callable[[Any], bool]) -> list[Any]:
    """A list of ``what``, each of which ``fits``; empty where there is none."""
    value = fields.get(key)
    if value is None:
        return []
    if type(value) is not list or not all(map(fits, value)):
        raise WrongFieldError(key, value, f"no list of {what}")
    return value


def numbered(fields: Mapping[str, Any], key: str) -> int:
    """The number of a stream or device, also where it is written "stream 7"."""
    return _numbered(fields.get(key), key)


def _numbered(value: Any, key: str) -> int:
    if type(value) is int and -_MOST < value < _MOST:
        return value
    found = _TRAILING_NUMBER.search(value) if type(value) is str else None
    if found is None:
        raise WrongFieldError(key, value, "no number")
    return int(found.group())


def wholes(values: Sequence[Any], key: str, default: int) -> IntArray:
    """:func:`whole`, of the values of many events."""
    kinds = set(map(type, values))
    if kinds == {type(None)}:
        return np.full(len(values), default, dtype=np.int64)
    plain = _plain(values) if kinds == {int} else None
    if plain is None:
        return np.array([whole_of(value, key, default) for value in values], dtype=np.int64)
    return plain


def texts(values: list[Any], key: str) -> list[str]:
    """:func:`text` without a default, of the values of many events."""
    if set(map(type, values)) == {str} and all(map(str.isascii, values)):
        return values
    return [text_of(value, key) for value in values]


def numbers_of(values: Sequence[Any], key: str, others: Sequence[Any], other_key: str) -> IntArray:
    """:func:`numbered`, of the values of many events; those of ``others`` where an event lacks the field."""
    plain = _plain(values) if set(map(type, values)) == {int} else None
    if plain is not None:
        return plain
    return np.array(
        [
            _numbered(other, other_key) if value is ABSENT else _numbered(value, key)
            for value, other in zip(values, others, strict=True)
        ],
        dtype=np.int64,
    )


def _plain(values: Sequence[int]) -> IntArray | None:
    """Integers as a column; None where one is too large."""
    try:
        column = np.array(values, dtype=np.int64)
    except OverflowError:
        return None
    return column if column.min() > -_MOST and column.max() < _MOST else None


def product(value: Any, key: str) -> int:
    """The number of blocks (threads) of a grid (block) written [x, y, z]; 0 where it is none."""
    if value is None:
        return 0
    if type(value) is not list or len(value) > 3 or not all(type(size) is int for size in value):
        raise WrongFieldError(key, value, "no grid of up to three whole numbers")
    total = 1
    for size in value:
        total *= size
    return total if value and 0 < total < _MOST else 0
