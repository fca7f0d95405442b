"""Files to import: found at a path, decompressed, refused where they are none; small ones read whole."""

from __future__ import annotations

import gzip
import json
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

from simcore.errors import InputError
from simcore.units import format_bytes

_CHUNK_BYTES = 1 << 24
MAX_TEXT_BYTES = 16 << 30  # decompressed
_RATIO_FROM_BYTES = 64 << 20  # small files may compress well by chance
MAX_RATIO = 250  # traces compress 10 to 40 times; a bomb a thousand times


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


def read_object(source: TraceFile, what: str) -> dict[str, Any]:
    """The object in ``source``, decompressed; ``what`` it should be, for messages.

    Errors: InputError with file, position and reason for anything else.
    """
    data = bytearray()
    with readable(source.label, lambda: len(data)), opened(source) as (handle, stored):
        while chunk := handle.read(_CHUNK_BYTES):
            data += chunk
            check_size(source.label, len(data), stored)
    try:
        content = json.loads(data)
    except UnicodeDecodeError as error:
        raise InputError(f"{source.label}: byte {error.start:,}: not text") from None
    except json.JSONDecodeError as error:
        where = f"{source.label}: character {error.pos:,}"
        raise InputError(f"{where}: {error.msg}: not JSON, or truncated") from None
    except RecursionError:
        raise InputError(f"{source.label}: values are nested too deeply") from None
    if not isinstance(content, dict):
        raise InputError(f"{source.label}: is no JSON object of {what}")
    return content


_Read = TypeVar("_Read")


def read_each(
    sources: Iterable[TraceFile], read: Callable[[TraceFile], _Read], *, skip_bad: bool, needed: bool = True
) -> tuple[list[_Read], list[str]]:
    """What ``read`` makes of each file; with ``skip_bad`` of those that it can read, and why not of others.

    Errors: InputError for a file that cannot be read, or when none can and one is ``needed``.
    """
    found: list[_Read] = []
    skipped: list[str] = []
    for source in sources:
        try:
            found.append(read(source))
        except InputError as error:
            if not skip_bad:
                raise
            skipped.append(str(error))
    if needed and not found:
        raise InputError("no trace could be read: " + "; ".join(skipped))
    return found, skipped
