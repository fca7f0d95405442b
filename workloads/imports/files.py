"""Files to import: found at a path, decompressed in memory, refused where they are none.

Names inside archives are labels; nothing is unpacked to a path.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import IO, Any, TypeVar

from simcore.errors import InputError
from simcore.files import MANIFEST
from simcore.outside import VARIABLE, held_memory, json_document, limits, memory_budget, over
from simcore.records import dataclass
from simcore.units import MIB, format_bytes

_CHUNK_BYTES = 1 << 20
_GZIP = b"\x1f\x8b"
_RATIO_FROM_BYTES = 64 * MIB  # small files may compress well by chance
_MAX_RATIO = 250  # traces compress 10 to 40 times; a bomb a thousand times
_MEMORY_EVERY_BYTES = 64 * MIB  # of text: how often the memory that a file will take is told ahead
_ANALYSIS = 5  # what importing takes at most, over what reading takes: measured for 150,000 kernels
_MAX_MEMBERS = 100_000  # of an archive

_Archive = tarfile.TarFile | zipfile.ZipFile
_Member = tarfile.TarInfo | zipfile.ZipInfo


@dataclass(frozen=True)
class TraceFile:
    """One trace to be read: a file, or a member of an archive.  ``label`` names it in messages."""

    path: Path
    member: str | None = None
    info: _Member | None = field(default=None, repr=False, compare=False)  # where in the archive

    @property
    def label(self) -> str:
        """The file as a user would name it."""
        return f"{self.path}:{self.member}" if self.member else str(self.path)

    @property
    def num_bytes(self) -> int:
        """As it is stored: of a member, out of its archive."""
        return self.path.stat().st_size if self.info is None else _size(self.info)


def trace_files(path: Path) -> list[TraceFile]:
    """The traces at ``path``: a file (plain or gzip), the members of a tar or zip, or those of a folder.

    Errors: InputError when there is none, or the archive cannot be read.
    """
    try:
        if path.is_dir():
            found = [file for inner in _inside(path) for file in trace_files(inner)]
        elif not path.is_file():
            raise InputError(f"{path}: {'is a device or pipe, no file' if path.exists() else 'no such file'}")
        elif path.name.endswith(_ARCHIVES):
            found = _members(path)
        else:
            return [TraceFile(path)]
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise InputError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if not found:
        raise InputError(f"{path}: holds no trace (*{', *'.join((*_TRACES, *_CONTAINERS))})")
    return found


_TRACES = (".json", ".json.gz", ".et", ".et.gz", ".csv", ".csv.gz", ".parquet", ".xplane.pb")
_ARCHIVES = (".tar.gz", ".tgz", ".tar", ".zip")
_CONTAINERS = (*_ARCHIVES, ".sqlite", ".sqlite.gz", ".sqlite3")


def _inside(folder: Path) -> list[Path]:
    """The files of a folder that are traces by name; where it holds but one folder, those of that."""
    inner = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    names = {path.name for path in inner}
    found = [
        path
        for path in inner
        if path.name.endswith(_TRACES + _CONTAINERS)
        and path.name != MANIFEST
        and not path.is_dir()
        # XLA's profiler writes the same events as *.xplane.pb and for its viewer.
        and path.name.removesuffix(".trace.json.gz") + ".xplane.pb" not in names
    ]
    folders = [path for path in inner if path.is_dir()]
    return found or (_inside(folders[0]) if len(folders) == 1 else [])


def _members(path: Path) -> list[TraceFile]:
    found = []
    stored = path.stat().st_size
    with _archive(path) as archive:
        for number, (member, name, needed) in enumerate(_headers(archive)):
            _check_size(str(path), needed, stored)
            if number >= _MAX_MEMBERS:
                raise InputError(f"{path}: more than {_MAX_MEMBERS:,} members; not read further")
            if name.endswith(_TRACES) and "/._" not in f"/{name}":
                found.append(TraceFile(path, name, member))
    return sorted(found, key=lambda source: str(source.member))


def _headers(archive: _Archive) -> Iterator[tuple[_Member, str, int]]:
    """The members, their names ("" of what is no file), and the bytes that finding the next one unpacks."""
    if isinstance(archive, tarfile.TarFile):
        for entry in archive:
            yield entry, entry.name if entry.isfile() else "", max(entry.size, archive.offset)
        return
    for packed in archive.infolist():
        if packed.flag_bits & 1 or packed.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise InputError(
                f"{archive.filename}: is encrypted, or packed otherwise than deflated: unpack it"
            )
        yield packed, "" if packed.is_dir() else packed.filename, packed.file_size


def _size(member: _Member) -> int:
    return member.size if isinstance(member, tarfile.TarInfo) else member.file_size


@contextmanager
def _archive(path: Path) -> Iterator[_Archive]:
    with path.open("rb") as file:
        begin = file.read(2)
    with readable(str(path)):
        if begin == b"PK":
            with zipfile.ZipFile(path) as zipped:
                yield zipped
        else:
            with tarfile.open(path, "r:gz" if begin == _GZIP else "r:") as archive:
                yield archive


@contextmanager
def readable(label: str, position: Callable[[], int] | None = None) -> Iterator[None]:
    """Turn what goes wrong while reading and decompressing into a message."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError, zipfile.BadZipFile) as error:
        where = f" after {position():,} decompressed bytes" if position is not None else ""
        reason = str(error)
        if isinstance(error, EOFError):
            reason = "the compressed data ends too early (truncated file)"
        elif reason.startswith("Not a gzipped file"):  # it began as one
            reason = "other bytes follow the compressed data (two files joined, or damaged)"
        raise InputError(f"{label}: cannot be read{where}: {reason}") from None
    except OSError as error:
        raise InputError(f"{label}: cannot be read: {error.strerror or error}") from None


def is_packed(source: TraceFile) -> bool:
    """Whether a file, or the archive that it is in, is compressed by gzip."""
    with source.path.open("rb") as file:
        return file.read(2) == _GZIP


@contextmanager
def opened(source: TraceFile) -> Iterator[io.BufferedReader]:
    """The file's bytes, decompressed, within the limits.  InputError when it cannot be read, or unpacks to
    more than any trace.
    """
    with readable(source.label):
        if source.info is not None:
            with _archive(source.path) as archive:
                if isinstance(archive, zipfile.ZipFile):
                    assert isinstance(source.info, zipfile.ZipInfo)
                    member: IO[bytes] | None = archive.open(source.info)
                else:
                    assert isinstance(source.info, tarfile.TarInfo)
                    member = archive.extractfile(source.info)
                assert member is not None  # of a plain file's
                yield from _plain(source, member, _size(source.info))
        else:
            with source.path.open("rb") as file:
                yield from _plain(source, file, source.path.stat().st_size)


def _plain(source: TraceFile, stored: IO[bytes], size: int) -> Iterator[io.BufferedReader]:
    def share() -> float:
        return stored.tell() / max(1, size)

    packed = stored.read(2) == _GZIP
    stored.seek(0)
    bytes_of_file = source.path.stat().st_size if packed or source.info is not None else 0
    if packed:
        with gzip.GzipFile(fileobj=stored) as plain:
            yield io.BufferedReader(_Within(source.label, plain, bytes_of_file, share), _CHUNK_BYTES)
    else:
        yield io.BufferedReader(_Within(source.label, stored, bytes_of_file, share), _CHUNK_BYTES)


class _Within(io.RawIOBase):
    """A stream that refuses to go beyond the limits; ``share`` of the stored file was read."""

    def __init__(
        self, label: str, plain: IO[bytes] | gzip.GzipFile, stored_bytes: int, share: Callable[[], float]
    ) -> None:
        super().__init__()
        self._label, self._plain, self._stored, self._share = label, plain, stored_bytes, share
        self._at, self._asked_at = 0, 0
        self._held = held_memory()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._plain.read(len(buffer))
        self._at += len(data)
        _check_size(self._label, self._at, self._stored)
        if self._at >= self._asked_at + _MEMORY_EVERY_BYTES:
            self._asked_at = self._at
            self._check_memory()
        buffer[: len(data)] = data
        return len(data)

    def _check_memory(self) -> None:
        """InputError when importing the file will take more memory than there is, as far as it was read."""
        held = held_memory()
        needed = self._held + int(_ANALYSIS * (held - self._held) / self._share())
        most = limits().memory or memory_budget() + held
        if needed > most:
            raise InputError(
                f"{self._label}: importing it needs about {format_bytes(needed)} of memory;"
                f" {format_bytes(most)} may be used ({VARIABLE}=memory=... raises the limit)"
            )


def head_of(source: TraceFile, num_bytes: int = 64 << 10) -> bytes:
    """The beginning of a file, decompressed.  InputError when it cannot be read."""
    with opened(source) as handle:
        return handle.read(num_bytes)


def _check_size(label: str, text_bytes: int, stored_bytes: int) -> None:
    """InputError when a file unpacks to more than any trace: ``stored_bytes`` 0 for what is not packed."""
    if text_bytes > limits().unpacked:
        raise over("unpacked", 0, label)
    if stored_bytes and text_bytes > _RATIO_FROM_BYTES and text_bytes > _MAX_RATIO * stored_bytes:
        raise InputError(
            f"{label}: {format_bytes(stored_bytes)} unpack to {format_bytes(text_bytes)} and more,"
            f" over {_MAX_RATIO} times; no trace compresses so well, not read further"
        )


def read_whole(source: TraceFile, limit: str = "json") -> bytes:
    """All of a file, decompressed, and no more than the limit called ``limit``."""
    most, size, chunks = getattr(limits(), limit), 0, []
    with opened(source) as handle:
        while chunk := handle.read(_CHUNK_BYTES):
            chunks.append(chunk)
            size += len(chunk)
            if size > most:
                raise over(limit, 0, source.label)
    return b"".join(chunks)


def read_object(source: TraceFile, what: str) -> dict[str, Any]:
    """The object in ``source``, decompressed; ``what`` it should be, for messages.

    Errors: InputError with file, position and reason for anything else.
    """
    content = json_document(read_whole(source), source.label)
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
