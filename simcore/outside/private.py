"""Folders of one user alone, for what is built once and executed later.

Whoever can write into such a folder runs his own program as its user.  So one that somebody else made, may
write to or links elsewhere is refused, not used: temporary folders are shared, and their names are known.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from simcore.errors import InputError


def cache_home() -> Path:
    """Where this user's caches lie: ``$XDG_CACHE_HOME/simcore``, by default below ``~/.cache``."""
    root = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # A relative one is none, says the XDG Base Directory Specification.
    return (root if root.is_absolute() else Path.home() / ".cache") / "simcore"


def private_folder(name: str) -> Path:
    """The folder ``name`` for programs that are built once, made where it is missing.

    It lies in the user's cache, or in the temporary folder where that cannot be written.  Errors: InputError
    for one that is not the user's alone.
    """
    try:
        return _made(cache_home() / name)
    except (OSError, RuntimeError):  # a home that is read-only, or none at all
        pass
    folder = Path(tempfile.gettempdir()) / f"simcore-{name}-{os.getuid()}"
    try:
        return _made(folder)
    except OSError as error:
        raise InputError(f"cannot make a folder for what is built: {error}") from None


def _made(folder: Path) -> Path:
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode):
            flaw = "it is not a folder"
        elif found.st_uid != os.getuid():
            flaw = f"it belongs to another user (number {found.st_uid})"
        elif found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            flaw = f"others may write to it (mode {stat.S_IMODE(found.st_mode):o}, allowed: 700)"
        else:
            if not os.access(folder, os.W_OK | os.X_OK):
                raise PermissionError(f"{folder} cannot be written") from None
            return folder
        raise InputError(
            f"{folder}: {flaw}, so what lies in it is not run; remove it or set XDG_CACHE_HOME"
        ) from None
    return folder
