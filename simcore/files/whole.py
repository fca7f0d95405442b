"""Files and folders that appear whole or not at all.  Notes: [What is ours], [Beside the target]."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from simcore.errors import InputError
from simcore.files.beside import beside, swap
from simcore.files.manifest import check_replaceable, sync, write_manifest
from simcore.files.names import is_work, resolved


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Gives a path to write; the file takes the place of ``path`` when the block ends without an error.

    The given path has the name of ``path`` (and so its suffix).  Devices and pipes are written as they are.
    Errors: InputError when ``path`` is a folder or cannot be written.
    """
    target = resolved(path)
    if target.is_dir():
        raise InputError(f"{path} is a folder; name a file")
    # What a folder under way holds appears with it.
    if is_work(target.parent.parent.name) or (target.exists() and not target.is_file()):
        yield target
        return
    with beside(target) as work:
        fresh = work / "new" / target.name
        fresh.parent.mkdir()
        yield fresh
        sync(fresh)
        fresh.replace(target)
        sync(target.parent)


def whole_text(path: Path, text: str) -> None:
    """Write a text in place of ``path``, whole or not at all.  InputError when that fails."""
    try:
        with whole_file(path) as fresh:
            fresh.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None


@contextmanager
def whole_folder(path: Path, kind: str) -> Iterator[Path]:
    """Gives an empty folder to write; it takes the place of ``path`` when the block ends without an error.

    On any exception, ``KeyboardInterrupt`` and ``SystemExit`` included, what was at ``path`` stays.  A folder
    there of the same ``kind`` ("run", "graph") is replaced; Note [What is ours].
    Errors: InputError as :func:`check_replaceable` says, or when it cannot be written.
    """
    check_replaceable(path, kind)
    target = resolved(path)
    with beside(target) as work:
        fresh = work / "new"
        fresh.mkdir()
        yield fresh
        write_manifest(fresh, kind)
        try:
            ready = fresh.rename(work / "ready")
            swap(ready, target, work / "old")
            sync(target.parent)
        except OSError as error:
            raise InputError(f"cannot put a {kind} at {path}: {error.strerror}") from error
