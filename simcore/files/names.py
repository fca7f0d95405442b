"""Names of files and folders: made from names of jobs, which may come from files, or given by the user."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Final

from simcore.errors import InputError

_LONGEST: Final = 100  # bytes, of 255 that file systems allow
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._+=,@-]+")


def folder_name(name: str) -> str:
    """A job's name, which may come from a file, as the name of one file or folder in any folder.

    Letters that lead elsewhere or that shells and file systems trip over become ``-``, long names are cut and
    told apart by a digest.
    """
    safe = _UNSAFE.sub("-", name).lstrip(".-")
    return bounded(safe) or "unnamed"


def bounded(name: str) -> str:
    """A name of at most _LONGEST bytes; a longer one is cut and told apart by its digest."""
    data = os.fsencode(name)
    if len(data) <= _LONGEST:
        return name
    digest = hashlib.blake2b(data, digest_size=4).hexdigest()
    return f"{data[: _LONGEST - 9].decode('utf-8', 'ignore')}-{digest}"


def resolved(path: Path) -> Path:
    """The path that the user named, links followed.  InputError for what names no file."""
    try:
        target = Path(path).resolve()
        target.exists()  # a name that is too long is told here
    except (OSError, ValueError, RuntimeError) as error:  # a NUL, links in a circle
        raise InputError(f"{str(path)[:200]!r}: {getattr(error, 'strerror', None) or error}") from None
    if any("\ud800" <= letter <= "\udfff" for letter in str(target)):  # bytes that are not UTF-8
        raise InputError(f"{str(target)!a}: its name is not UTF-8, which writers of Parquet need")
    return target


def hidden_prefix(target: Path) -> str:
    """What the names of the hidden folders beside ``target`` begin with."""
    return f".{bounded(target.name)}.partial-"


def is_work(name: str) -> bool:
    """Whether a folder of this name is a hidden one."""
    return name.startswith(".") and ".partial-" in name
