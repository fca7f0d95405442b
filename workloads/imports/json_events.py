"""Events of a trace file one at a time: a JSON reader that never holds the file, nor its decompressed text.

A profiler trace is one object whose ``traceEvents`` array has a million small objects.  Each is decoded by
the standard library's C scanner from a sliding window of text, so memory is the window, whatever the file.
"""

from __future__ import annotations

import codecs
import gzip
import json
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from simcore.errors import InputError
from simcore.units import format_bytes

_CHUNK_BYTES = 1 << 20
_MAX_VALUE_CHARS = 64 << 20  # one event or header value: a longer one is no profiler's
MAX_TEXT_BYTES = 16 << 30  # decompressed
_RATIO_FROM_BYTES = 64 << 20  # small files may compress well by chance
MAX_RATIO = 250  # traces compress 10 to 40 times; a bomb a thousand times

_SPACE = re.compile(r"[ \t\r\n]*")


@dataclass(frozen=True)
class TraceFile:
    """One trace to be read: a file, or a member of a tar archive.  ``label`` names it in messages."""

    path: Path
    member: str | None = None

    @property
    def label(self) -> str:
        """The file as a user would name it."""
        return f"{self.path}:{self.member}" if self.member else str(self.path)


def trace_files(path: Path) -> list[TraceFile]:
    """The traces at ``path``: a file (plain or gzip), the members of a tar, or those of a folder.

    Errors: InputError when there is none, or the archive cannot be read.
    """
    if path.is_dir():
        found = [
            f for inner in sorted(path.iterdir()) if _is_trace_name(inner.name) for f in trace_files(inner)
        ]
    elif not path.is_file():
        raise InputError(f"{path}: no such file")
    elif path.name.endswith((".tar.gz", ".tgz", ".tar")):
        found = [TraceFile(path, name) for name in _members(path)]
    else:
        return [TraceFile(path)]
    if not found:
        raise InputError(f"{path}: holds no trace (*{', *'.join((*_TRACES, *_CONTAINERS))})")
    return found


_TRACES = (".json", ".json.gz", ".et", ".csv", ".csv.gz", ".parquet")
_CONTAINERS = (".tar.gz", ".tgz", ".tar", ".sqlite", ".sqlite.gz", ".sqlite3")


def _is_trace_name(name: str) -> bool:
    return name.endswith(_TRACES + _CONTAINERS) and not name.startswith(".")


def _members(path: Path) -> list[str]:
    files = []
    stored = path.stat().st_size
    with readable(str(path)), tarfile.open(path) as archive:
        for member in archive:  # the next header comes after unpacking all of this member
            check_size(str(path), member.size, stored)
            if member.isfile():
                files.append(member.name)
    return sorted(name for name in files if name.endswith(_TRACES) and "/._" not in f"/{name}")


@contextmanager
def readable(label: str, position: Callable[[], int] | None = None) -> Iterator[None]:
    """Turn what goes wrong while reading and decompressing into a message."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError) as error:
        where = f" after {position():,} decompressed bytes" if position is not None else ""
        early = isinstance(error, EOFError)
        reason = "the compressed data ends too early (truncated file)" if early else str(error)
        raise InputError(f"{label}: cannot be read{where}: {reason}") from None


@contextmanager
def opened(source: TraceFile) -> Iterator[tuple[IO[bytes] | gzip.GzipFile, int]]:
    """The file's bytes, decompressed, and its size as stored."""
    if source.member is None:
        stored = source.path.stat().st_size
        with source.path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            if not packed:
                yield raw, 0
                return
            with gzip.GzipFile(fileobj=raw) as plain:
                yield plain, stored
        return
    with tarfile.open(source.path) as archive:
        handle = archive.extractfile(source.member)
        if handle is None:
            raise InputError(f"{source.label}: no such member")
        stored = source.path.stat().st_size
        if source.member.endswith(".gz"):
            with gzip.GzipFile(fileobj=handle) as plain:
                yield plain, stored
        else:
            yield handle, stored


def head_of(source: TraceFile, num_bytes: int = 64 << 10) -> bytes:
    """The beginning of a file, decompressed.  InputError when it cannot be read."""
    head = b""
    with readable(source.label, lambda: len(head)), opened(source) as (handle, _):
        while len(head) < num_bytes and (more := handle.read(num_bytes - len(head))):
            head += more
    return head


def check_size(label: str, text_bytes: int, stored_bytes: int) -> None:
    """InputError when a file unpacks to more than any trace: ``stored_bytes`` 0 for what is not packed."""
    if text_bytes > MAX_TEXT_BYTES:
        raise InputError(f"{label}: more than {format_bytes(MAX_TEXT_BYTES)} of text; not read further")
    if stored_bytes and text_bytes > _RATIO_FROM_BYTES and text_bytes > MAX_RATIO * stored_bytes:
        raise InputError(
            f"{label}: {format_bytes(stored_bytes)} unpack to {format_bytes(text_bytes)} and more,"
            f" over {MAX_RATIO} times; no trace compresses so well, not read further"
        )


class _Window:
    """A sliding window of decoded text over a byte stream."""

    def __init__(self, label: str, handle: IO[bytes] | gzip.GzipFile, stored_bytes: int) -> None:
        self.label = label
        self.text = ""
        self.at = 0
        self.read_bytes = 0
        self._dropped = 0  # characters before the window
        self._handle = handle
        self._stored = stored_bytes
        self._decode = codecs.getincrementaldecoder("utf-8-sig")(errors="replace").decode
        self._ended = False
        # Fractions stay text: 1712195495519689.123 us does not fit in a double.  Names of kernels and Python
        # frames may hold raw control characters and bytes that are no UTF-8.
        self._scan = json.JSONDecoder(parse_float=str, parse_constant=_no_constant, strict=False).raw_decode

    def fill(self) -> bool:
        """Read on; False at the end of the file."""
        if self._ended:
            return False
        with readable(self.label, lambda: self.read_bytes):
            data = self._handle.read(_CHUNK_BYTES)
            self._ended = not data
            more = self._decode(data, self._ended)
        self.read_bytes += len(data)
        check_size(self.label, self.read_bytes, self._stored)
        self._dropped += self.at
        self.text = self.text[self.at :] + more
        self.at = 0
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
                self.fill()
            except ValueError as error:  # an integer of thousands of digits
                raise self.fail(str(error)) from None
            except RecursionError:
                raise self.fail("values are nested too deeply") from None


def _no_constant(name: str) -> str:
    return name  # NaN and the infinities, judged where they stand


def read_events(
    source: TraceFile, header: dict[str, Any], *, key: str = "traceEvents"
) -> Iterator[tuple[int, Any]]:
    """``(number, event)`` of each entry of the array ``key``; other keys of the file go into ``header``.

    Fractional numbers arrive as text.  Keys after the events are in ``header`` once all are read.
    A bare array of events is read too.
    Errors: InputError with file, position and reason for anything that is not such a file.
    """
    with readable(source.label), opened(source) as (handle, stored):
        window = _Window(source.label, handle, stored)
        if not window.next_char():
            raise window.fail("the file is empty")
        if window.expect("{[") == "[":
            yield from _array(window)
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
                yield from _array(window)
            else:
                header[name] = window.value()
            if window.next_char() == ",":
                window.at += 1
            elif window.next_char() != "}":
                window.expect(",}")
        if not found:
            raise InputError(f"{source.label}: has no {key}: not a profiler trace")


def _array(window: _Window) -> Iterator[tuple[int, Any]]:
    """The values of an array whose bracket has been consumed."""
    if window.next_char() == "]":
        window.at += 1
        return
    number = 0
    while True:
        yield number, window.value()
        number += 1
        if window.expect(",]") == "]":
            return
