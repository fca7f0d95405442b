"""Things that register themselves: each in a file of its own, all of them known at the first look-up."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from typing import Generic, TypeVar

from simcore.errors import InputError, nearest

T = TypeVar("T")


class Registry(Generic[T]):
    """Things by name, in the order of their files.  ``package``: whose modules register them.

    ``what`` is what one of them is called in messages.
    """

    def __init__(self, what: str, package: str) -> None:
        self._what, self._package = what, package
        self._found: dict[str, T] = {}
        self._is_read = False

    def register(self, name: str, one: T) -> T:
        """Make ``one`` known as ``name``; returns it."""
        assert name not in self._found, f"{self._what} {name!r} is registered twice"
        self._found[name] = one
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
            self._is_read = True
            for module in iter_modules(import_module(self._package).__path__):
                import_module(f"{self._package}.{module.name}")
        return self._found
