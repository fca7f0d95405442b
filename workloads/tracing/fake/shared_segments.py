"""Shared memory (``multiprocessing.shared_memory``) of ranks that do not run at the same time.

What one rank makes, a rank that runs later finds: segments stay until the trace is over
(:func:`workloads.tracing.fake.mail.unlink_segments`), also those whose maker has unlinked them or has ended.
"""

from __future__ import annotations

import _posixshmem  # type: ignore[import-not-found]
from multiprocessing import shared_memory
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from workloads.tracing.fake import process_groups

#: Where this rank notes what it makes; None: segments live as they really do.
folder: Path | None = None
#: What this run of the rank has made and not unlinked, which it cannot make again.
_made: set[str] = set()


def install() -> None:
    """Patch ``SharedMemory``, once per process."""
    memory: Any = shared_memory.SharedMemory
    init, inside = memory.__init__, vars(shared_memory)
    tracker = inside["resource_tracker"]

    def made(self: Any, name: str | None = None, create: bool = False, size: int = 0) -> None:
        rank = str(process_groups.place_in_world[0])
        if create and name is not None and folder is not None and name not in _made:
            note = folder / f"segment.{name}"
            if note.exists() and note.read_text() == rank:  # unlinked, or of an earlier run of the rank
                _posixshmem.shm_unlink(f"/{name}")
        init(self, name, create, size)
        if create and folder is not None:
            _made.add(self.name)
            (folder / f"segment.{self.name}").write_text(rank)

    def unlink(name: str) -> None:
        if folder is None:
            _posixshmem.shm_unlink(name)
        else:
            _made.discard(name.removeprefix("/"))

    def tracked(how: str) -> Any:  # a process of its own unlinks what is left by one that ends
        return lambda name, kind: None if folder is not None else getattr(tracker, how)(name, kind)

    memory.__init__ = made
    inside["_posixshmem"] = SimpleNamespace(shm_open=_posixshmem.shm_open, shm_unlink=unlink)
    inside["resource_tracker"] = SimpleNamespace(
        register=tracked("register"), unregister=tracked("unregister")
    )
