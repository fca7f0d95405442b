"""Gzip files that are compressed while the next piece is made."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

_GZIP = 16 + zlib.MAX_WBITS  # zlib's way to ask for a gzip header and trailer
_LEVEL = 1


@contextmanager
def compressed(path: Path) -> Iterator[Callable[[bytes], None]]:
    """Write ``path``: gives a function that takes the file's pieces in order, at most one waits in memory.

    zlib works without the interpreter's lock.  The same pieces make the same file: no time is in its header.
    """
    deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    with path.open("wb") as file, ThreadPoolExecutor(1) as worker:
        under_way: list[Future[int]] = []

        def write(piece: bytes) -> None:
            done = worker.submit(lambda: file.write(deflate.compress(piece)))
            if under_way:
                under_way.pop().result()
            under_way.append(done)

        yield write
        for future in under_way:
            future.result()
        file.write(deflate.flush())
