"""Things that register themselves: each in a file of its own, all of them known at the first look-up."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import Generic, TypeVar

from simcore.errors import InputError, SimcoreError, nearest

T = TypeVar("T")


class Registry(Generic[T]):
    """Things by name, in the order of their files.  ``package``: whose modules register them.

    ``what`` is what one of them is called in messages.
    """

    def __init__(self, what: str, package: str) -> None:
        self._what, self._package = what, package
        self._found: dict[str, T] = {}
        self._own: set[str] = set()
        self._is_read = False
        #: Changes with everything that a user defines.
        self.revision = 0

    def register(self, name: str, one: T) -> T:
        """Make ``one`` known as ``name``; returns it.  InputError for a name that is taken."""
        if name in self._found:
            raise InputError(f"{self._what} {name!r} is registered twice")
        self._found[name] = one
        return one

    def define(self, name: str, one: T) -> T:
        """Make a user's own known as ``name``, in the place of what he defined before; returns it.

        InputError for a name that the program has.
        """
        if name in self._read() and name not in self._own:
            raise InputError(f"{self._what} {name!r} is the program's own; choose another name")
        self._found[name] = one
        self._own.add(name)
        self.revision += 1
        return one

    def __getitem__(self, name: str) -> T:
        """What is called ``name``.  InputError, with the nearest name, when there is none."""
        found = self._read().get(name)
        if found is None:
            raise InputError(f"unknown {self._what} {name!r}{nearest(name, self._found)}")
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._read()

    def __len__(self) -> int:
        return len(self._read())

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def values(self) -> tuple[T, ...]:
        """All of them."""
        return tuple(self._read().values())

    def _read(self) -> dict[str, T]:
        if not self._is_read:
            self._is_read = True  # before its files are: one may look another up
            try:
                for module in iter_modules(import_module(self._package).__path__):
                    _read_file(f"{self._package}.{module.name}")
            except Exception:
                self._is_read = False
                raise
        return self._found


def _read_file(module: str) -> None:
    """Import a file that registers something.  InputError, naming it and the line, when it has a mistake."""
    try:
        import_module(module)
    except Exception as error:
        spec = find_spec(module)
        file = spec.origin if spec is not None and spec.origin else module
        raise InputError(mistake_in(file, error)) from error


def mistake_in(file: str, error: Exception) -> str:
    """``error`` with the last line of ``file`` that it came through."""
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f"{error.filename}, line {error.lineno}: {type(error).__name__}: {error.msg}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    where = f"{file}, line {lines[-1]}" if lines else file
    return (
        f"{where}: {error}"
        if isinstance(error, SimcoreError)
        else f"{where}: {type(error).__name__}: {error}"
    )
