"""Dataclasses that cost a process little: what constructs one is compiled when many are made.

Python's own decorator compiles six functions for each frozen class, 0.4 ms before Python 3.13; a run imports
three hundred classes, makes objects of two thirds of them, and of most of these a few.  Here ``__init__`` is
compiled by a later call than the first ones, and what compares, hashes, orders and prints are functions that
know the fields' names.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Sequence
from dataclasses import MISSING, FrozenInstanceError
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls: type | None = None, /, **options: bool) -> Any:
        """:func:`dataclasses.dataclass`, with its options, and methods that are made when they are needed."""

        def decorated(cls: type) -> type:
            return _decorated(cls, **options)

        return decorated if cls is None else decorated(cls)


_BY_HAND: Final = 16
_ORDER: Final = {"__lt__": operator.lt, "__le__": operator.le, "__gt__": operator.gt, "__ge__": operator.ge}


def _decorated(
    cls: type, *, frozen: bool = False, eq: bool = True, order: bool = False, repr: bool = True,
    slots: bool = False, kw_only: bool = False,
) -> type:  # fmt: skip
    """``cls`` with its fields and methods; what it defines itself stays."""
    own = cls.__dict__.copy()
    cls.__doc__ = cls.__doc__ or cls.__name__  # Python's own would write the signature there, at some length
    cls = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)(cls)
    fields = dataclasses.fields(cls)
    compared = _values([one.name for one in fields if one.compare])
    made: dict[str, Any] = {"__init__": _init_when_called(cls, frozen=frozen)}
    if repr:
        made["__repr__"] = _repr([one.name for one in fields if one.repr])
    if eq:
        made["__eq__"] = _comparison(compared, operator.eq)
    if order:
        made |= {name: _comparison(compared, compares) for name, compares in _ORDER.items()}
    for name in made.keys() - own.keys():
        setattr(cls, name, made[name])
    if eq and ("__hash__" not in own or (own["__hash__"] is None and "__eq__" in own)):
        cls.__hash__ = _hash(fields) if frozen else None  # type: ignore[assignment,method-assign]
    if frozen:
        _freeze(cls, frozenset(one.name for one in fields))
        if slots:
            cls.__getstate__ = _state  # type: ignore[method-assign,assignment]
            cls.__setstate__ = _set_state  # type: ignore[attr-defined]
    return cls


def _values(names: Sequence[str]) -> Callable[[Any], Any]:
    """What gives these attributes of an object as a tuple."""
    if len(names) > 1:
        return operator.attrgetter(*names)
    return lambda one: tuple([getattr(one, name) for name in names])


def _comparison(values: Callable[[Any], Any], compares: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def compared(self: Any, other: Any) -> Any:
        return compares(values(self), values(other)) if other.__class__ is self.__class__ else NotImplemented

    return compared


def _hash(fields: Sequence[dataclasses.Field[Any]]) -> Callable[[Any], int]:
    values = _values([one.name for one in fields if (one.compare if one.hash is None else one.hash)])
    return lambda self: hash(values(self))


def _repr(names: Sequence[str]) -> Callable[[Any], str]:
    @recursive_repr()
    def shown(self: Any) -> str:
        values = ", ".join([f"{name}={getattr(self, name)!r}" for name in names])
        return f"{self.__class__.__qualname__}({values})"

    return shown


def _init_when_called(cls: type, *, frozen: bool) -> Callable[..., None]:
    """Sets the fields of the first objects one by one; compiling what does it takes as long as thirty do."""
    left = _BY_HAND

    def stub(self: object, *arguments: Any, **keywords: Any) -> None:
        nonlocal left
        left -= 1
        values = _values_given(cls, arguments, keywords) if left >= 0 else None
        if values is None:  # or the call is wrong: a function says how
            cls.__init__ = init = _init(cls, frozen=frozen)  # type: ignore[misc]
            init(self, *arguments, **keywords)
            return
        for name, value in values.items():
            object.__setattr__(self, name, value)
        if hasattr(cls, "__post_init__"):
            self.__post_init__()  # type: ignore[attr-defined]

    return stub


def _values_given(cls: type, arguments: tuple[Any, ...], given: dict[str, Any]) -> dict[str, Any] | None:
    """All fields' values, in their order; None where the arguments are not those of the class."""
    fields = dataclasses.fields(cls)
    by_place = [one.name for one in fields if one.init and one.kw_only is not True]
    known = dict(zip(by_place, arguments, strict=False))
    if len(arguments) > len(by_place) or known.keys() & given.keys():
        return None
    known.update(given)
    values = {}
    for one in fields:
        if one.init and one.name in known:
            values[one.name] = known.pop(one.name)
        elif one.default_factory is not MISSING:
            values[one.name] = one.default_factory()
        elif one.init and one.default is MISSING:
            return None
        elif one.init:
            values[one.name] = one.default
    return None if known else values


def _init(cls: type, *, frozen: bool) -> Callable[..., None]:
    """Sets all fields, and calls ``__post_init__`` where there is one."""
    known: dict[str, Any] = {"_set": object.__setattr__, "_missing": MISSING}
    heads: tuple[list[str], list[str]] = ([], [])  # by position, by name only
    body = []
    for one in dataclasses.fields(cls):
        value = one.name
        if one.default_factory is not MISSING:
            known[f"_make_{one.name}"] = one.default_factory
            value = f"_make_{one.name}()"
            if one.init:
                heads[one.kw_only is True].append(f"{one.name}=_missing")
                value = f"{value} if {one.name} is _missing else {one.name}"
        elif not one.init:
            continue
        elif one.default is not MISSING:
            known[f"_usual_{one.name}"] = one.default
            heads[one.kw_only is True].append(f"{one.name}=_usual_{one.name}")
        else:
            heads[one.kw_only is True].append(one.name)
        body.append(f"_set(self,{one.name!r},{value})" if frozen else f"self.{one.name}={value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    head = ",".join(["self", *heads[0], *(["*", *heads[1]] if heads[1] else ())])
    exec(f"def __init__({head}):\n " + "\n ".join(body or ["pass"]), known)
    init: Callable[..., None] = known["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__module__ = cls.__module__
    return init


def _freeze(cls: type, names: frozenset[str]) -> None:
    """Fields, and in a class that inherits no more nothing at all, cannot be set or deleted."""
    beyond: Any = super(cls, cls)

    def set_attribute(self: object, name: str, value: object) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        beyond.__setattr__(self, name, value)

    def delete_attribute(self: object, name: str) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        beyond.__delattr__(self, name)

    cls.__setattr__ = set_attribute  # type: ignore[assignment,method-assign]
    cls.__delattr__ = delete_attribute  # type: ignore[assignment,method-assign]


def _state(self: Any) -> list[Any]:
    return [getattr(self, one.name) for one in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for one, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, one.name, value)
