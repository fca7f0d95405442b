"""A hidden folder beside a target, in which what will take its place is prepared.

Note [Beside the target].  The hidden folder is named by boot, host, process and a random part.  Its ``lock``
is held while its writer lives and is released by its death, so whoever writes to the same target next removes
what a killed writer left; between kernels, which may not see each other's locks, only after a day.  ``new``
is under way and may be deleted whole; ``ready`` is complete, and after the swap what was there before;
``old`` is that, too, where a file system cannot swap two folders at once.  Two writers to one target do not
see each other: the last to finish wins, whole.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import os
import secrets
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Final

from simcore.errors import InputError
from simcore.files.manifest import MANIFEST, entries, read_manifest
from simcore.files.names import bounded, folder_name, hidden_prefix, is_work

_STALE_S: Final = 24 * 3600.0  # what a writer of another machine left is removed when it is older
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_EXCHANGE: Final = 2  # RENAME_EXCHANGE of Linux
_CWD: Final = -100  # AT_FDCWD


@contextmanager
def beside(target: Path) -> Iterator[Path]:
    """A hidden folder beside ``target``, held by this process and removed at the end."""
    made: list[Path] = []
    try:
        made = [parent for parent in target.parents if not parent.exists()]
        work, lock = _held(target)
    except OSError as error:
        _remove_empty(made)
        raise InputError(f"cannot write to {target.parent}: {error.strerror}") from error
    try:
        _remove_stale(target, work)
        yield work
    except OSError as error:
        if error.errno in _FULL:
            what = "what was there is as it was" if target.exists() else "nothing is left of it"
            raise InputError(f"cannot write {target}: {os.strerror(error.errno)}; {what}") from error
        raise
    finally:
        _clear(work, target)
        os.close(lock)
        _remove_empty(made)


def swap(ready: Path, target: Path, old: Path) -> None:
    """Put ``ready`` where ``target`` is, at once; what was there is then ``ready``, or ``old``.  OSError."""
    for _ in range(100):  # another writer may put a folder there, or take it away, between two looks
        try:
            if os.path.lexists(target):
                if _exchange(ready, target):
                    return
                target.rename(old)
            ready.rename(target)
            return
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                raise
            last = error
            if os.path.lexists(old):  # theirs came in between and has won; ours is put over it
                _discard(old, target)
    raise last


def _held(target: Path) -> tuple[Path, int]:
    """A new hidden folder and its lock, which nobody took for one that was left behind.  OSError."""
    host = folder_name(socket.gethostname())[:40]
    for last in (*[False] * 100, True):
        unique = f"{_boot()}-{host}-{os.getpid()}-{secrets.token_hex(4)}"
        work = target.with_name(hidden_prefix(target) + unique)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            work.mkdir()
            lock = _locked(work, own=True)
        except FileNotFoundError:  # another writer that failed has removed the parents that it made
            if last:
                raise
            continue
        except FileExistsError:  # a file where a folder of the path should be
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None
        if lock is not None:
            return work, lock
    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))


def _locked(work: Path, *, own: bool = False) -> int | None:
    """The lock of a hidden folder, or None when somebody else has it or has removed the folder."""
    path = work / "lock"
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock), path.stat()):
            return lock
    except OSError as error:
        if own and error.errno in (errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS):
            return lock  # a file system without locks: nobody removes what is left there
    os.close(lock)
    return None


def _remove_stale(target: Path, own: Path) -> None:
    """Remove what killed writers to ``target`` left beside it.  What cannot be removed stays."""
    with suppress(OSError), os.scandir(target.parent) as found:
        left = [Path(entry.path) for entry in found if entry.name.startswith(hidden_prefix(target))]
        for work in left:
            if work == own or not is_work(work.name):
                continue
            # Ages by the file system's own clock, whatever this machine's says.
            age_s = own.stat().st_mtime - work.stat().st_mtime
            same_kernel = work.name.startswith(hidden_prefix(target) + _boot() + "-")
            if not same_kernel and age_s < _STALE_S:
                continue
            lock = _locked(work)
            if lock is not None:
                _clear(work, target)
                os.close(lock)


def _clear(work: Path, target: Path) -> None:
    """Remove a hidden folder whose lock we have; what was at ``target`` goes back where nothing is now."""
    shutil.rmtree(work / "new", ignore_errors=True)
    with suppress(OSError):
        if os.path.lexists(work / "old") and not os.path.lexists(target):
            (work / "old").rename(target)
        for name in ("ready", "old"):
            if os.path.lexists(work / name):
                _discard(work / name, target)
        (work / "lock").unlink(missing_ok=True)
        work.rmdir()


def _discard(folder: Path, target: Path) -> None:
    """Delete what is ours of what was at ``target``; the rest is kept beside it, where one sees it."""
    with suppress(OSError, InputError):
        files = read_manifest(folder)["files"]
        inner = {parent for name in files for parent in Path(name).parents} - {Path()}
        for name in [name for name in entries(folder) if name in files]:
            (folder / name).unlink()
        for below in sorted(inner, key=lambda one: -len(one.parts)):
            with suppress(OSError):
                (folder / below).rmdir()
        (folder / MANIFEST).unlink()  # last: who is killed here is followed by who reads it again
    try:
        folder.rmdir()
    except OSError:
        folder.rename(target.with_name(f"{bounded(target.name)}.kept-{secrets.token_hex(4)}"))


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names at once, so that no kill leaves neither.  False where the system cannot.

    FileNotFoundError when one is missing.
    """
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_CWD, os.fsencode(one), _CWD, os.fsencode(other), _EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EXDEV):
        return False
    raise OSError(number, os.strerror(number), str(other))


def _remove_empty(folders: list[Path]) -> None:
    """Remove folders, innermost first, that hold nothing."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


@cache
def _boot() -> str:
    """What tells the running kernel from all others; the host's name where the system does not say."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    except OSError:
        text = socket.gethostname()
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
