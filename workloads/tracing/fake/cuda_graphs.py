"""``torch.cuda.CUDAGraph``: what is captured is kept, and launched again by every replay.

Who listens keeps the calls; see :mod:`workloads.tracing.record.captured`.  Nothing is computed by a replay:
tensors of a graph hold what is not known.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch


class CaptureListener(Protocol):
    """What the recorder does with graphs."""

    def capture_begins(self) -> None:
        """What is issued from now on is kept and not launched."""
        ...

    def capture_ends(self) -> Any:
        """What was kept."""
        ...

    def capture_replayed(self, captured: Any) -> None:
        """Launch what was kept."""
        ...


#: Set while a rank is traced.
listener: CaptureListener | None = None
_capturing = False


def is_capturing(*_: object) -> bool:
    """``torch.cuda.is_current_stream_capturing``."""
    return _capturing


class FakeCUDAGraph:
    """One graph; methods are those of ``torch.cuda.CUDAGraph``."""

    def __init__(self, *_args: object, **_kwargs: object) -> None:
        self._captured: Any = None

    def capture_begin(self, *_args: object, **_kwargs: object) -> None:
        """Keep what follows."""
        global _capturing
        _capturing = True
        if listener is not None:
            listener.capture_begins()

    def capture_end(self) -> None:
        """Launch again what follows."""
        global _capturing
        _capturing = False
        if listener is not None:
            self._captured = listener.capture_ends()

    def replay(self) -> None:
        """Launch what was captured.  RuntimeError: nothing was."""
        if listener is not None:
            if self._captured is None:
                raise RuntimeError("CUDA graph: replay() before capture_end()")
            listener.capture_replayed(self._captured)

    def reset(self) -> None:
        """Forget what was captured."""
        self._captured = None

    def pool(self) -> tuple[int, int]:
        """A memory pool's name."""
        return (0, 0)

    def instantiate(self) -> None:
        """Nothing is compiled."""

    enable_debug_mode = instantiate

    def debug_dump(self, debug_path: str) -> None:
        """Nothing is written."""

    def register_generator_state(self, generator: torch.Generator) -> None:
        """Random numbers of the device are not known."""
