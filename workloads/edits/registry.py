"""Edits by key: ``--edit KEY=VALUE`` parsed, found, applied in the order given.

::

    @edit("layers", value=WHOLE, help="layers of the model", kinds=("traced",))
    def layers(job: EditableJob, call: EditCall) -> Edited: ...

A key may hold placeholders (``kernel.<regex>.speed``), whose texts are ``call.names``.  Several functions may
stand under one key for different kinds of jobs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import Any

from simcore.errors import InputError, nearest
from simcore.records import dataclass
from workloads.edits.job import KINDS, EditableJob, Edited


@dataclass(frozen=True)
class Value:
    """A kind of value: its unit as shown to users; the parser raises InputError or ValueError."""

    unit: str
    parse: Callable[[str], Any]
    required: bool = True


#: Beyond these, a number is a slip, and times leave 64 bits of picoseconds.
_MOST_WHOLE, _LEAST_FACTOR, _MOST_FACTOR, _MOST_US = 10**9, 1e-4, 1e6, 1e4


def _positive(text: str, *, whole: bool = False) -> float:
    number = float(text)
    if math.isnan(number) or number <= 0 or math.isinf(number):
        raise ValueError(f"must be a positive {'whole ' if whole else ''}number")
    if whole and number > _MOST_WHOLE:
        raise ValueError(f"must be at most {_MOST_WHOLE:,}")
    if whole and not number.is_integer():
        raise ValueError(f"must be a whole number, such as {max(1, round(number))}")
    return number


def _factor(text: str) -> float:
    if float(text) == math.inf and text.strip("+").lower() in ("inf", "infinity"):
        return math.inf
    number = _positive(text)
    if not _LEAST_FACTOR <= number <= _MOST_FACTOR:
        raise ValueError(f"must be {_LEAST_FACTOR:g} to {_MOST_FACTOR:g}, or inf")
    return number


def _microseconds(text: str) -> float:
    number = 0.0 if float(text) == 0 else _positive(text)
    if number > _MOST_US:
        raise ValueError(f"must be at most {_MOST_US:g} us")
    return number


def _flag(text: str) -> bool:
    if text not in ("", "on", "yes", "true"):
        raise ValueError("takes no value, or 'on'")
    return True


def choice(*allowed: str) -> Value:
    """One word of a list."""

    def parse(text: str) -> str:
        if text not in allowed:
            raise InputError(f"cannot be {text!r}{nearest(text, allowed)}")
        return text

    return Value("|".join(allowed), parse)


def _count(text: str) -> tuple[int | None, int]:
    found = re.fullmatch(r"(?:(\d{1,9}):)?(\d{1,9})", text)
    if found is None or int(found.group(2)) < 1 or found.group(1) == "0":
        raise InputError(f"cannot be {text!r}; a whole number, such as 48, or as it was and shall be: 24:48")
    return (int(found.group(1)) if found.group(1) else None), int(found.group(2))


COUNT = Value("count, or old:new", _count)
WHOLE = Value("whole number", lambda text: int(_positive(text, whole=True)))
FACTOR = Value("times, may be inf", _factor)
MICROSECONDS = Value("us", _microseconds)
TEXT = Value("text", lambda text: text)
FLAG = Value("on", _flag, required=False)


@dataclass(frozen=True)
class EditCall:
    """One ``--edit`` as given: its key, the texts of the key's placeholders, and the parsed value."""

    key: str
    names: tuple[str, ...]
    value: Any
    text: str


EditFunction = Callable[[EditableJob, EditCall], Edited]


@dataclass(frozen=True)
class Edit:
    """A registered edit: what users may write and the function for jobs of ``kinds``."""

    key: str
    value: Value
    help: str
    kinds: tuple[str, ...]
    apply: EditFunction

    def match(self, key: str) -> tuple[str, ...] | None:
        """Texts of the placeholders when ``key`` is this edit's; None when it is not."""
        parts = re.split(r"<[^>]+>", self.key)
        found = re.fullmatch("(.+)".join(map(re.escape, parts)), key)
        return found.groups() if found else None


@dataclass(frozen=True)
class Applied:
    """An edit done: as given, what was assumed, op executions changed in a step, and the job afterwards."""

    key: str
    value: str
    assumed: tuple[str, ...]
    ops_changed: int
    job: EditableJob


_MOST_SHOWN = 200  # characters of an edit, in messages
_EDITS: list[Edit] = []


def edit(
    key: str, *, value: Value, help: str, kinds: tuple[str, ...] = KINDS
) -> Callable[[EditFunction], EditFunction]:
    """Register a function under ``key`` for jobs of ``kinds``."""
    assert set(kinds) <= set(KINDS), kinds
    assert not any(known.key == key and set(known.kinds) & set(kinds) for known in _EDITS), key

    def register(function: EditFunction) -> EditFunction:
        _EDITS.append(Edit(key, value, help, kinds, function))
        return function

    return register


def registered_edits() -> tuple[Edit, ...]:
    """All edits, in the order of registration."""
    return tuple(_EDITS)


def split_edits(texts: Iterable[str]) -> list[tuple[str, str]]:
    """``KEY=VALUE`` strings (or ``KEY`` alone, for edits without a value) as pairs, in the order given."""
    pairs = []
    for text in texts:
        key, _, value = text.partition("=")
        if not key.strip():
            raise InputError(f"--edit {text!r}: expected KEY=VALUE, such as kernel.gemm.speed=2")
        pairs.append((key.strip(), value.strip()))
    return pairs


def apply_edit(job: EditableJob, key: str, text: str) -> Applied:
    """One edit.

    Errors: InputError for an unknown key (with the nearest), a key that jobs of this kind do not have, a
    value that does not parse, or one that makes no sense for this job.
    """
    called = f"--edit {key}" + (f"={text}" if text else "")
    called = called if len(called) < _MOST_SHOWN else f"{called[:_MOST_SHOWN]}..."
    known = _find(job.kind, key, called)
    if known.value.required and not text:
        raise InputError(f"{called}: needs a value ({known.value.unit}), such as --edit {key}=...")
    try:
        value = known.value.parse(text)
    except ValueError as error:
        reason = str(error)
        if reason.startswith("could not convert"):
            reason = f"{text[:80]!r} is not a number ({known.value.unit})"
        raise InputError(f"{called}: {reason}") from None
    except InputError as error:
        raise InputError(f"{called}: {error}") from None
    names = known.match(key)
    assert names is not None
    try:
        done = known.apply(job, EditCall(key, names, value, text))
    except InputError as error:
        raise type(error)(f"{called}: {error}") from None
    return Applied(key, text, done.assumed, done.ops_changed, done.job)


def _find(kind: str, key: str, called: str) -> Edit:
    # A key without placeholders wins over one with: remove.communication is not a regex.
    fitting = sorted((e for e in _EDITS if e.match(key) is not None), key=lambda e: e.key.count("<"))
    for known in fitting:
        if kind in known.kinds:
            return known
    if fitting:
        kinds = sorted({k.replace("_", " ") for e in fitting for k in e.kinds})
        raise InputError(
            f"{called}: a {kind.replace('_', ' ')} job cannot be edited so, only: {', '.join(kinds)}"
        )
    keys = sorted({known.key for known in _EDITS if kind in known.kinds})
    raise InputError(f"{called}: unknown edit{nearest(key, keys)}")
