"""Files and folders that rank 0 made for others to see, and has removed since.

Ranks do not run at the same time: who waits for such a file, that is, looks for it again and again, finds it.
"""

from __future__ import annotations

import functools
import hashlib
import os
import stat
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workloads.tracing.fake import process_groups

#: Where rank 0 notes what it removes; None: nowhere.
folder: Path | None = None
#: How often a rank looks in vain.
_IN_VAIN = 5
_looked: Counter[Path] = Counter()
_real_stat = os.stat


def removing(original: Callable[..., None]) -> Callable[..., None]:
    """Removes or moves away what its first argument names."""

    @functools.wraps(original)
    def remove(path: Any, *args: Any, **kwargs: Any) -> None:
        where, kind = path, ""
        if kwargs.get("dir_fd") is not None:  # of a whole tree
            where = Path(f"/proc/self/fd/{kwargs['dir_fd']}").readlink() / path
        note = _note(where)
        if note is not None and process_groups.place_in_world[0] == 0 and os.path.lexists(where):
            kind = "folder" if stat.S_ISDIR(_real_stat(where, follow_symlinks=False).st_mode) else "file"
        original(path, *args, **kwargs)
        if note is not None and kind:
            note.mkdir(exist_ok=True) if kind == "folder" else note.touch()

    return remove


def looking(original: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
    """``os.stat``, which also ``exists`` asks."""

    @functools.wraps(original)
    def looked(path: Any, *args: Any, **kwargs: Any) -> os.stat_result:
        try:
            return original(path, *args, **kwargs)
        except FileNotFoundError:
            note = None if process_groups.place_in_world[0] == 0 else _note(path)
            if note is None or not os.path.lexists(note):
                raise
            _looked[note] += 1
            if _looked[note] < _IN_VAIN:
                raise
            return _real_stat(note)

    return looked


def _note(path: Any) -> Path | None:
    if folder is None or not isinstance(path, str | os.PathLike):
        return None
    where = os.path.realpath(path)
    if where.startswith(f"{folder}{os.sep}"):  # ranks' own mail
        return None
    return folder / f"gone.{hashlib.blake2b(os.fsencode(where), digest_size=12).hexdigest()}"
