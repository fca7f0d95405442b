"""How a process runs one command, and what it need not do as it ends."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

#: Objects made between two looks for garbage in cycles, of which there is little.  A run of a usual job makes
#: fewer; by the default of 700 they would all be looked at several times.
_OBJECTS = 1_000_000
_USUAL = gc.get_threshold()


@contextmanager
def one_command() -> Iterator[None]:
    """Around the only thing that this process does, before numpy is imported.

    Garbage is rarely looked for, and not at the end: the interpreter ends with a look at every object, of
    which it is left none, since the system takes all memory back.  numpy's linear algebra, which no command
    needs much of, starts no threads unless the environment says how many: a third of its time to start.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.set_threshold(_OBJECTS)
    try:
        yield
    finally:
        gc.freeze()


def alone(command: typer.Typer | Callable[..., None]) -> None:
    """Run a command, or several, with this process's arguments and nothing else: what each script does."""
    with one_command():
        command() if isinstance(command, typer.Typer) else typer.run(command)


def collect_as_usual() -> None:
    """Look for garbage as often as Python does: for a command whose objects in cycles hold much memory."""
    gc.set_threshold(*_USUAL)
