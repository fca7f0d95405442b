"""How a script may say where its steps are.  Imports nothing: scripts use it where torch really runs, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: Called with True when a marked step begins and with False when it ends; set while tracing.
listener: Callable[[bool], None] | None = None


@contextmanager
def simcore_step() -> Iterator[None]:
    """One training step.  Needed only where ``optimizer.step()`` does not say it: custom optimizers, or
    several optimizers with backward passes between their steps.  Without a tracer it does nothing.
    """
    if listener is not None:
        listener(True)
    yield
    if listener is not None:
        listener(False)
