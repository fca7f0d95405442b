"""Threads that a program starts see the fake device as its main thread does: torch keeps modes per thread."""

from __future__ import annotations

import threading
from typing import Any

from torch.utils._python_dispatch import _pop_mode, _push_mode

#: The modes of the rank being traced, outermost first; none where nothing is traced.
modes: tuple[Any, ...] = ()


def install() -> None:
    """Patch ``threading.Thread``, once per process."""
    thread: Any = threading.Thread
    original = thread._bootstrap_inner

    def bootstrap(self: threading.Thread) -> None:
        pushed = modes
        for mode in pushed:
            _push_mode(mode)
        try:
            original(self)
        finally:
            for _ in pushed:
                _pop_mode()

    thread._bootstrap_inner = bootstrap
