"""The manifest of a folder: what in it is ours, and as it was written.

Note [What is ours].  A folder that this program wrote holds ``manifest.json``, written last, which names
every file in it with size and digest.  Only a folder whose manifest names all that it holds is ever replaced,
and of what is replaced only files that the manifest names are deleted: what appeared there meanwhile is left
beside it, in ``NAME.kept-...``.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from simcore.errors import InputError, nearest
from simcore.files.names import is_work, resolved
from simcore.outside import json_document, read_bytes, there

MANIFEST: Final = "manifest.json"
_FORMAT: Final = 1
_CHUNK: Final = 1 << 20
_AT_ONCE: Final = 8


def check_replaceable(path: Path, kind: str) -> None:
    """InputError unless ``path`` is absent, an empty folder, or one of this ``kind`` that is ours alone."""
    target = resolved(path)
    before: object = ...
    while True:
        seen = _identity(target)
        try:
            return _check_replaceable(path, target, kind)
        except InputError:
            if seen == before:
                raise  # twice of the same folder: not because another writer took it away, or brought it back
            before = seen


def _check_replaceable(path: Path, target: Path, kind: str) -> None:
    try:
        if not target.exists():
            return
        if not target.is_dir():
            raise InputError(f"{path} is a file; a {kind} needs a folder")
        if target in (here := Path.cwd(), *here.parents):
            raise InputError(f"{path} is the working folder or holds it; name a folder for the {kind}")
        held = list(entries(target))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    if not held:
        return
    if MANIFEST not in held:
        raise InputError(
            f"{path} is not a {kind} folder and not empty: no {MANIFEST} names {held[0]!r}"
            f"{f' and {len(held) - 1} more' if held[1:] else ''} as ours; nothing is removed: choose another"
            " folder, or delete it yourself if an older version wrote it"
        )
    manifest = read_manifest(target)
    if manifest["holds"] != kind:
        raise InputError(
            f"{path} is not a {kind} folder: it holds a {manifest['holds']}; choose another folder"
        )
    foreign = [name for name in held if name not in manifest["files"] and name != MANIFEST]
    if foreign:
        raise InputError(
            f"{path} holds {foreign[0]!r}, which this program did not write ({MANIFEST} does not name it);"
            " nothing is removed: move it away, or choose another folder"
        )


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file or folder stands there, None for none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def write_manifest(folder: Path, kind: str) -> None:
    """Name every file in ``folder`` with size and digest, the disk having taken all of them."""
    files = _all_described(folder, [name for name in entries(folder) if name != MANIFEST])
    content = {"format": _FORMAT, "holds": kind, "files": files}
    (folder / MANIFEST).write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    sync(folder / MANIFEST)
    for inner in {(folder / name).parent for name in files} | {folder}:
        sync(inner)


def check_folder(folder: Path, kind: str) -> None:
    """InputError, naming the file, unless ``folder`` holds a ``kind``, all of it as it was written.

    Files beside those that the manifest names do not matter.
    """
    if not there(folder):
        raise InputError(f"{folder} is not a {kind} folder: there is none{_beside(folder)}")
    if not there(folder / MANIFEST):
        raise InputError(
            f"{folder} is not a {kind} folder: it has no {MANIFEST} (never finished, or written by an older"
            " version: write it again)"
        )
    if is_work(folder.resolve().parent.name):
        raise InputError(f"{folder} is what a writer that was ended left behind; write it again")
    manifest = read_manifest(folder)
    if manifest["holds"] != kind:
        raise InputError(f"{folder} is not a {kind} folder: it holds a {manifest['holds']}")
    for name in manifest["files"]:
        check_file(folder / name, name, manifest)


def _beside(folder: Path) -> str:
    """A folder of nearly that name beside it, if there is one."""
    known: list[str] = []
    with suppress(OSError):
        known = [one.name for one in folder.parent.iterdir() if not is_work(one.name)]
    hint = nearest(folder.name, known)
    return hint if hint.startswith("; did") else ""


def check_file(path: Path, name: str, manifest: Mapping[str, Any]) -> None:
    """InputError unless ``path`` is as it was when ``manifest`` named it ``name``."""
    known, kind = manifest["files"][name], manifest["holds"]
    try:
        size = path.stat().st_size
        if size < known["bytes"]:
            raise InputError(f"{path}: {size:,} of {known['bytes']:,} bytes; the {kind} folder is damaged")
        if size > known["bytes"] or _digest(path) != known["blake2b"]:
            raise InputError(f"{path}: changed since it was written; the {kind} folder is not as it was")
    except FileNotFoundError:
        raise InputError(f"{path}: missing; the {kind} folder is incomplete") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None


def manifest_of(folder: Path, kind: str) -> dict[str, Any] | None:
    """The manifest of a ``kind`` folder, None where none is: other programs have files of that name, too.

    InputError for one that is damaged.
    """
    path = folder / MANIFEST
    if not path.is_file():
        return None
    content = json_document(read_bytes(path, "a manifest", "json"), str(path))
    ours = isinstance(content, dict) and content.get("holds") == kind
    return read_manifest(folder) if ours else None


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest, its shape checked.  Names in it are compared with what is there, never followed."""
    path = folder / MANIFEST
    content = json_document(read_bytes(path, "a manifest", "json"), str(path))
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise InputError(f"{path}: not a manifest of format {_FORMAT}")
    files = content.get("files")
    if not isinstance(files, dict) or not isinstance(content.get("holds"), str):
        raise InputError(f"{path}: needs 'holds' and 'files'")
    for name, known in files.items():
        if not _is_below(name):
            raise InputError(f"{path}: {name[:200]!r} is not a file of this folder")
        if (
            not isinstance(known, dict)
            or type(known.get("bytes")) is not int
            or not isinstance(known.get("blake2b"), str)
        ):
            raise InputError(f"{path}: {name[:200]!r} needs 'bytes' and 'blake2b'")
    return content


def _is_below(name: str) -> bool:
    return "\0" not in name and all(part not in ("", ".", "..") for part in name.split("/"))


def _all_described(folder: Path, names: Sequence[str]) -> dict[str, Mapping[str, int | str]]:
    """Files by name, the disk having taken them: some at once, which it takes in the time of one or two."""
    found: dict[str, Mapping[str, int | str]] = {}
    errors: list[OSError] = []
    waiting = iter(names)

    def describe() -> None:
        for name in waiting:
            try:
                found[name] = _described(folder / name)
            except OSError as error:
                errors.append(error)

    others = [threading.Thread(target=describe) for _ in names[1:_AT_ONCE]]
    for one in others:
        one.start()
    try:
        describe()
    finally:
        for one in others:
            one.join()
    if errors:
        raise errors[0]
    return found


def _described(path: Path) -> Mapping[str, int | str]:
    sync(path)
    return {"bytes": path.stat().st_size, "blake2b": _digest(path)}


def _digest(path: Path) -> str:
    found = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            found.update(chunk)
    return found.hexdigest()


def entries(folder: Path | str, prefix: str = "") -> Iterator[str]:
    """Names of all files below ``folder``; links count as files, empty folders end in a slash."""
    with os.scandir(folder) as found:
        inside = sorted(found, key=lambda entry: entry.name)
    for entry in inside:
        if entry.is_dir(follow_symlinks=False):
            yield from list(entries(entry.path, f"{prefix}{entry.name}/")) or [f"{prefix}{entry.name}/"]
        else:
            yield prefix + entry.name


def sync(path: Path) -> None:
    """Wait until the disk has a file, or the names in a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that cannot, of folders
            raise
    finally:
        os.close(handle)
