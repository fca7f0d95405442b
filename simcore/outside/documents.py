"""JSON, TOML and YAML from outside: read within limits, as plain values that nothing later stumbles over.

What is refused here, with file and reason, is what parsers let through or die of: texts beyond the limits,
nesting that exhausts the stack, numbers of thousands of digits, NaN and infinity, halves of surrogate pairs,
keys given twice (parsers keep the last one without a word) and YAML aliases that multiply.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from simcore.errors import InputError
from simcore.outside.limits import Limits, limits, over

if TYPE_CHECKING:
    import yaml

#: Dotted keys of more levels than any limit: TOML readers take memory by the square of the levels.
_DEEP_KEY: Final = re.compile(r"""(?<![\w."'-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){256}""")
#: Values that a YAML text's aliases may stand for, each counted as often as it is meant.
_MEANT_VALUES: Final = 1_000_000


def read_bytes(path: Path, what: str, limit: str = "text") -> bytes:
    """A file's bytes, never more than the limit called ``limit``: devices and pipes end there too.

    InputError if it cannot be read; ``what`` it should be, for messages.
    """
    most = getattr(limits(), limit)
    try:
        with path.open("rb") as file:
            found = file.read(most + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot read {what} {str(path)!r}: {reason}") from None
    if len(found) > most:
        raise over(limit, 0, str(path))
    return found


def read_text(path: Path, what: str, limit: str = "text") -> str:
    """As :func:`read_bytes`, as text.  InputError with the position where it is no UTF-8."""
    return decoded(read_bytes(path, what, limit), str(path))


def decoded(data: bytes, where: str) -> str:
    """UTF-8, with a byte order mark or without.  InputError with the position of what is none."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{where}: line {line:,}, byte {error.start:,}: no UTF-8 text") from None


def quoted(value: object) -> str:
    """A value of a file as a message shows it, cut where it is long."""
    text = ascii(value) if isinstance(value, str) else repr(value)
    return text if len(text) <= 80 else f"{text[:60]}...{text[-15:]}"


def json_document(text: str | bytes, where: str) -> Any:
    """The JSON value in ``text``.  InputError as the module says."""
    content = _within(text, "json", where)
    try:
        return _checked(json.loads(content, object_pairs_hook=_once, parse_constant=_no_number), where)
    except json.JSONDecodeError as error:
        at = f"line {error.lineno:,}, column {error.colno:,}"
        raise InputError(f"{where}: {at}: {error.msg}: not JSON, or truncated") from None
    except _RefusedError as error:
        raise InputError(f"{where}: {error}") from None
    except RecursionError:
        raise over("depth", 0, where) from None
    except ValueError:  # of int(), which refuses thousands of digits
        raise over("digits", 0, where) from None


def toml_document(text: str | bytes, where: str) -> dict[str, Any]:
    """The table in ``text``.  InputError as the module says."""
    content = _within(text, "text", where)
    if _DEEP_KEY.search(content):
        raise over("depth", 0, where)
    try:
        return dict(_checked(tomllib.loads(content), where))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{where}: not valid TOML: {error}") from None
    except RecursionError:
        raise over("depth", 0, where) from None
    except ValueError:
        raise over("digits", 0, where) from None


def yaml_document(text: str | bytes, where: str) -> Any:
    """The one document in ``text``.  InputError as the module says."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    content = _within(text, "text", where)
    try:
        _check_nesting(yaml.parse(content, Loader=loader), where)  # composing recurses, in C
        node = yaml.compose(content, Loader=loader)
        if node is None:
            return None
        _meant(node, {})
        return _checked(yaml.load(content, Loader=loader), where)
    except yaml.YAMLError as error:
        raise InputError(f"{where}: not valid YAML: {' '.join(str(error).split())[:500]}") from None
    except _RefusedError as error:
        raise InputError(f"{where}: {error}") from None
    except RecursionError:
        raise over("depth", 0, where) from None
    except (ValueError, TypeError, OverflowError) as error:  # of int(), of dates, of keys that are tables
        if "digits" in str(error):
            raise over("digits", 0, where) from None
        raise InputError(f"{where}: not valid YAML: {str(error)[:200]}") from None


class _RefusedError(Exception):
    """A document says something that must not pass."""


def _within(text: str | bytes, limit: str, where: str) -> str:
    if len(text) > getattr(limits(), limit):
        raise over(limit, len(text), where)
    return text if isinstance(text, str) else decoded(text, where)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _RefusedError(f"{twice[:80]!r} is given twice")
    return found


def _no_number(word: str) -> Any:
    raise _RefusedError(f"{word} is no number")


def _checked(content: Any, where: str) -> Any:
    """``content``, walked through without recursion.  InputError for what must not pass."""
    allowed = limits()
    levels: list[Iterator[tuple[object, Any]]] = [iter((("", content),))]
    while levels:
        for key, value in levels[-1]:
            if isinstance(value, dict):
                for name in value:
                    _check_plain(name, allowed, where)
                levels.append(iter(value.items()))
                break
            if isinstance(value, list):
                levels.append(iter((key, entry) for entry in value))
                break
            _check_plain(value, allowed, where, key)
        else:
            levels.pop()
        if len(levels) > allowed.depth + 1:
            raise over("depth", 0, where)
    return content


def _check_plain(value: Any, allowed: Limits, where: str, key: object = "") -> None:
    if isinstance(value, str):
        if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise InputError(f"{where}: {ascii(value)[:80]} holds half of a surrogate pair, which is no text")
    elif isinstance(value, int):
        if value.bit_length() > 3.33 * allowed.digits:
            raise over("digits", int(value.bit_length() / 3.3219), where)
    elif isinstance(value, float) and not math.isfinite(value):
        place = f"{where}: {ascii(key)[1:-1][:80]}" if isinstance(key, str) and key else where
        raise InputError(f"{place}: must be a finite number, got {value}")


def _check_nesting(events: Iterable[yaml.Event], where: str) -> None:
    depth = 0
    for event in events:
        name = type(event).__name__
        depth += name.endswith("StartEvent") - name.endswith("EndEvent")
        if depth > limits().depth:
            raise over("depth", 0, where)


def _meant(node: yaml.Node, counts: dict[int, int]) -> int:
    """How many values ``node`` stands for, aliases followed.

    _RefusedError for a key that is given twice, for aliases in a circle and for more than _MEANT_VALUES.
    """
    known = counts.get(id(node))
    if known is not None:
        if known < 0:
            raise _RefusedError("an alias stands for what holds it")
        return known
    counts[id(node)] = -1
    total = 1
    if isinstance(node.value, list):
        keys: set[str] = set()
        for entry in node.value:
            key, value = entry if isinstance(entry, tuple) else (None, entry)
            if key is not None:
                if isinstance(key.value, str):
                    if key.value in keys:
                        line = key.start_mark.line + 1
                        raise _RefusedError(f"{key.value[:80]!r} is given twice, again in line {line}")
                    keys.add(key.value)
                total += _meant(key, counts)
            total += _meant(value, counts)
            if total > _MEANT_VALUES:
                raise _RefusedError(f"its aliases stand for more than {_MEANT_VALUES:,} values")
    counts[id(node)] = total
    return total
