"""Threads that a program starts see the fake device as its main thread does: torch keeps modes per thread."""

from __future__ import annotations

import threading
from typing import Any

from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _pop_mode, _push_mode

#: The modes of the rank being traced, outermost first; none where nothing is traced.
modes: tuple[Any, ...] = ()


class _ByThread(threading.local):
    """Whether this thread is inside a kernel of shapes: torch keeps one flag for all threads."""

    inside = False


def install() -> None:
    """Patch ``threading.Thread``, once per process."""
    here = _ByThread()
    mode_class: Any = FakeTensorMode
    mode_class.in_kernel_invocation = property(
        lambda _: here.inside, lambda _, inside: setattr(here, "inside", inside)
    )
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
