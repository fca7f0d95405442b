"""Events of a trace file in batches: a JSON reader that never holds the file, nor its decompressed text.

A profiler trace is one object whose ``traceEvents`` array has a million small objects.  They are decoded from
a sliding window of text, so memory is the window, whatever the file: as many at once as the window holds, one
at a time, by the standard library's scanner, where it cannot be cut (and to say where an error stands).
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator
from typing import IO, Any, Final, NamedTuple, TypeVar

from simcore.errors import InputError
from simcore.outside import limits, over
from workloads.imports.files import TraceFile, opened, readable

_CHUNK_BYTES = 1 << 20
_MAX_VALUE_CHARS = 64 << 20  # one event or header value: a longer one is no profiler's
_SPACE = re.compile(r"[ \t\r\n]*")
_Entry = TypeVar("_Entry")


class Piece(NamedTuple):
    """An array's text, cut out of one of a trace.  ``inside``: first byte and number of bytes between its
    brackets in the file, decompressed; None where characters before its end take several.
    """

    text: str
    inside: tuple[int, int] | None


class _Window:
    """A sliding window of decoded text over a byte stream."""

    def __init__(self, label: str, handle: IO[bytes]) -> None:
        self.label = label
        self.text = ""
        self.at = 0
        self.read_bytes = 0
        self._dropped = 0  # characters before the window
        self._handle = handle
        self._decode = codecs.getincrementaldecoder("utf-8-sig")(errors="replace").decode
        self._ended = False
        self._can_cut = True  # whether a try to decode several values at once may go well
        self._scan = JSON.raw_decode

    def fill(self) -> bool:
        """Read on; False at the end of the file."""
        if self._ended:
            return False
        with readable(self.label, lambda: self.read_bytes):
            data = self._handle.read(_CHUNK_BYTES)
            self._ended = not data
            more = self._decode(data, self._ended)
        self.read_bytes += len(data)
        self._dropped += self.at
        self.text = self.text[self.at :] + more
        self.at = 0
        self._can_cut = True
        return not self._ended

    def fail(self, reason: str) -> InputError:
        """The error for what stands at the current position."""
        return InputError(f"{self.label}: character {self._dropped + self.at:,}: {reason}")

    def next_char(self) -> str:
        """The next character that is no white space (not consumed); "" at the end."""
        while True:
            found = _SPACE.match(self.text, self.at)
            assert found is not None
            self.at = found.end()
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.fill():
                return ""

    def expect(self, wanted: str) -> str:
        """Consume the next character, which must be one of ``wanted``."""
        char = self.next_char()
        if not char:
            raise self.fail("the file ends too early (truncated?)")
        if char not in wanted:
            names = " or ".join(repr(c) for c in wanted)
            raise self.fail(f"expected {names}, found {char!r}: not JSON of a trace")
        self.at += 1
        return char

    def value(self) -> Any:
        """The next JSON value."""
        if len(self.text) - self.at < _CHUNK_BYTES >> 1:
            self.fill()
        self.next_char()
        while True:
            try:
                value, end = self._scan(self.text, self.at)
                if end < len(self.text) or self._ended:
                    self.at = end
                    return value
                self.fill()  # a number may go on after the window
            except json.JSONDecodeError as error:
                if len(self.text) - self.at > _MAX_VALUE_CHARS:
                    raise self.fail(f"a value of more than {_MAX_VALUE_CHARS >> 20} Mi characters") from None
                if self._ended:
                    self.at = min(error.pos, len(self.text))
                    raise self.fail(f"{error.msg}: not JSON, or truncated") from None
                wanted = 2 * (
                    len(self.text) - self.at
                )  # a long value is scanned a few times, not at each fill
                while self.fill() and len(self.text) < wanted:
                    pass
            except ValueError as error:  # an integer of thousands of digits
                raise self.fail(str(error)) from None
            except RecursionError:
                raise self.fail("values are nested too deeply") from None

    def _last_border(self) -> int:
        """Where the last object ends that another one follows; -1 where none does."""
        at = len(self.text)
        while (at := self.text.rfind("},", self.at, at)) >= 0:
            found = _SPACE.match(self.text, at + 2)
            assert found is not None
            if self.text[found.end() : found.end() + 1] == "{":
                break
        return at

    def _piece(self, end: int) -> Piece:
        """The text up to ``end``."""
        is_byte_each = self._dropped + len(self.text) == self.read_bytes
        inside = (self._dropped + self.at, end - self.at) if is_byte_each else None
        return Piece(f"[{self.text[self.at : end]}]", inside)

    def values(
        self, decode: Callable[[Piece], list[_Entry]], last: Callable[[Piece], list[_Entry]]
    ) -> list[_Entry]:
        """The next objects of an array, with the comma behind them: all that the window holds; [] for none.

        ``decode``, and ``last`` at the end of the file, makes entries of an array's text, or raises
        ValueError.  The text up to the last comma between two objects is an array's inside, or it is no JSON:
        cut inside a text or another array, a quote or a bracket is missing at its end.
        """
        if len(self.text) - self.at < _CHUNK_BYTES >> 1:
            self.fill()
        cut = self._last_border() if self._can_cut else -1
        if cut >= 0:
            try:
                found = (last if self._ended else decode)(self._piece(cut + 1))
            except (ValueError, RecursionError):  # said, with its place, when it is read by itself
                found = []
            if found:
                self.at = cut + 2
                return found
        self._can_cut = False
        return []


def _no_constant(name: str) -> str:
    return name  # NaN and the infinities, judged where they stand


#: Fractions stay text: 1712195495519689.123 us does not fit in a double.  Names of kernels and Python frames
#: may hold raw control characters and bytes that are no UTF-8.
JSON: Final = json.JSONDecoder(parse_float=str, parse_constant=_no_constant, strict=False)


def read_events(
    source: TraceFile, header: dict[str, Any], *, key: str = "traceEvents"
) -> Iterator[tuple[int, Any]]:
    """``(number, event)`` of each entry of the array ``key``, as :func:`read_batches` reads them."""
    for number, events in read_batches(
        source, header, lambda piece: JSON.decode(piece.text), lambda _, value: value, key=key
    ):
        yield from enumerate(events, start=number)


def read_batches(
    source: TraceFile,
    header: dict[str, Any],
    decode: Callable[[Piece], list[_Entry]],
    convert: Callable[[int, Any], _Entry],
    *,
    key: str = "traceEvents",
    last: Callable[[Piece], list[_Entry]] | None = None,
) -> Iterator[tuple[int, list[_Entry]]]:
    """Entries of the array ``key``, many at once, with the number of the first; the file's other keys go
    into ``header``.

    ``decode`` makes entries of the text of an array, or raises ValueError where it does not understand one;
    then each is read by itself, and ``convert`` makes an entry of its number and value.  Fractional numbers
    are text in such a value.  ``last``, if given, is asked instead of ``decode`` once the file is read to its
    end: only there may what follows the array stand in a text.  Keys after the events are in ``header`` once
    all are read.  A bare array of events is read too.
    Errors: InputError with file, position and reason for anything that is not such a file.
    """
    with opened(source) as handle:
        window = _Window(source.label, handle)
        if not window.next_char():
            raise window.fail("the file is empty")
        if window.expect("{[") == "[":
            yield from _array(window, decode, convert, last or decode)
            return
        found = False
        while window.next_char() != "}":
            name = window.value()
            if not isinstance(name, str):
                raise window.fail("expected a key: not JSON of a trace")
            window.expect(":")
            if name == key:
                found = True
                window.expect("[")
                yield from _array(window, decode, convert, last or decode)
            else:
                header[name] = window.value()
            if window.next_char() == ",":
                window.at += 1
            elif window.next_char() != "}":
                window.expect(",}")
        if not found:
            raise InputError(f"{source.label}: has no {key}: not a profiler trace")


def _array(
    window: _Window,
    decode: Callable[[Piece], list[_Entry]],
    convert: Callable[[int, Any], _Entry],
    last: Callable[[Piece], list[_Entry]],
) -> Iterator[tuple[int, list[_Entry]]]:
    """The values of an array whose bracket has been consumed."""
    if window.next_char() == "]":
        window.at += 1
        return
    number, most = 0, limits().events
    while True:
        while entries := window.values(decode, last):
            if number + len(entries) > most:
                raise over("events", 0, window.label)
            yield number, entries
            number += len(entries)
        yield number, [convert(number, window.value())]
        number += 1
        if number > most:
            raise over("events", 0, window.label)
        if window.expect(",]") == "]":
            return
