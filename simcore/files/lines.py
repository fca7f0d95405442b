"""Files that grow by whole lines, whoever writes and dies beside."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from simcore.errors import InputError
from simcore.files.names import resolved


def append_line(path: Path, line: str) -> None:
    """Append ``line``, without its line break: all of it, on a line of its own, or nothing.

    Writers take turns.  Half a line that a killed writer left stays a line.  The disk has the line when this
    returns.
    Errors: InputError when it cannot be written.
    """
    try:
        handle = os.open(resolved(path), os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            end = os.fstat(handle).st_size
            torn = end and os.pread(handle, 1, end - 1) != b"\n"
            data = f"{chr(10) if torn else ''}{line}\n".encode()
            if os.write(handle, data) < len(data):  # the disk is full
                os.ftruncate(handle, end)
                raise InputError(f"cannot write {path}: only a part of a line was taken; is the disk full?")
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None
