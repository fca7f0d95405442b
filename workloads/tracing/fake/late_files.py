"""Files that a program opens to write a checkpoint: touched only when something else is written into them.

``open(path, "wb")`` empties the file of a real run before ``torch.save`` is seen.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

#: How files are opened to be written from their beginning, as bytes.
WRITING = frozenset({"wb", "xb", "wb+", "w+b"})
#: Names that checkpoints have.
_CHECKPOINTS = (".bin", ".ckpt", ".pkl", ".pt", ".pth", ".tar")


class LateFile:
    """What ``open`` gives, opened at the first use other than saving into it.  ``hold`` keeps what is saved;
    ``is_saved`` says of bytes whether they are what was saved into memory before.
    """

    def __init__(
        self, open_it: Callable[[], Any], hold: Callable[[bytes], None], is_saved: Callable[[Any], bool]
    ) -> None:
        self._open, self._is_saved = open_it, is_saved
        self._file: Any = None
        self._held = self.closed = False
        self._hold = hold

    def hold(self, written: bytes) -> bool:
        """Keep what is saved; False where the file has been written already."""
        if self._file is None:
            self._hold(written)
            self._held = True
        return self._file is None

    def write(self, data: Any) -> Any:
        """As a file's; what ``torch.save`` made in memory is held like what it saves."""
        if self._file is None and self._is_saved(data) and self.hold(bytes(data)):
            return len(data)
        return self._real().write(data)

    def flush(self) -> None:
        """As a file's."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """As a file's: one that nothing was written into is empty."""
        done, self.closed = self.closed, True
        if not done and (not self._held or self._file is not None):
            self._real().close()

    def writable(self) -> bool:
        """As a file's."""
        return True

    def _real(self) -> Any:
        if self._file is None:
            self._file = self._open()
        return self._file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real(), name)

    def __enter__(self) -> LateFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_late(path: str) -> bool:
    """Whether a file to be written is a checkpoint, or one that is there."""
    return path.endswith(_CHECKPOINTS) or Path(path).is_file()
