"""Dataclasses that make their methods late behave like Python's own, whatever they are asked first."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any, ClassVar

import pytest

from simcore import records

OPTIONS: tuple[dict[str, bool], ...] = (
    {},
    {"frozen": True},
    {"frozen": True, "order": True},
    {"frozen": True, "eq": False},
    {"frozen": True, "repr": False},
    {"frozen": True, "kw_only": True},
    {"frozen": True, "slots": True},
    {"eq": False, "slots": True},
)


def _classes(decorate: Any, options: dict[str, bool]) -> tuple[type[Any], type[Any]]:
    """A class with all that classes here have, and one that inherits it and has methods of its own."""

    @decorate(**options)
    class Base:
        shared: ClassVar[int] = 3
        first: int
        second: tuple[int, ...] = (1, 2)
        third: dict[str, int] = dataclasses.field(default_factory=dict, compare=False, repr=False)

        def __post_init__(self) -> None:
            if self.first < 0:
                raise ValueError("below 0")

    @decorate(**options)
    class Derived(Base):
        fourth: str = "four"

        def __hash__(self) -> int:
            return 7

        def __repr__(self) -> str:
            return "derived"

    return Base, Derived


def _answers(cls: type[Any], question: int) -> object:
    one, other = cls(first=1), cls(first=2, second=())
    if question == 0:
        return repr(one).replace(repr(id(one)), "")[-40:] if "object at" not in repr(one) else "object"
    if question == 1:
        return (one == cls(first=1), one == other, one == 1)
    if question == 2:
        try:
            return (hash(one) == hash(cls(first=1)), {one: 1}[one])
        except TypeError as error:
            return str(error)
    if question == 3:
        try:
            return (one < other, one >= other)
        except TypeError:
            return "no order"
    if question == 4:
        try:
            one.first = 5
            del one.first
        except AttributeError as error:
            return type(error), str(error)
        return "set"
    if question == 5:
        return [getattr(dataclasses.replace(one, first=9), field.name) for field in dataclasses.fields(one)]
    if question == 6:
        return dataclasses.asdict(copy.deepcopy(one)), cls.__match_args__, cls.shared
    found = []
    for arguments in ({}, {"first": -1}, {"first": 1, "nothing": 2}):
        try:
            found.append(cls(**arguments))
        except (TypeError, ValueError) as error:
            found.append(str(error))
    return found


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "+".join(options) or "plain")
@pytest.mark.parametrize("question", range(8))
@pytest.mark.parametrize("by_hand", [0, 2, 16])
def test_as_pythons_own(
    options: dict[str, bool], question: int, by_hand: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each question is the first that a class is asked, whose objects are made both ways."""
    monkeypatch.setattr(records, "_BY_HAND", by_hand)
    for ours, pythons in zip(
        _classes(records.dataclass, options), _classes(dataclasses.dataclass, options), strict=True
    ):
        assert _answers(ours, question) == _answers(pythons, question)


@records.dataclass(frozen=True)
class Sent:
    """A record that is sent to another process."""

    number: int


@records.dataclass(frozen=True, slots=True)
class SentSmall:
    """The same without a dictionary."""

    number: int


@pytest.mark.parametrize("kind", [Sent, SentSmall])
def test_pickled(kind: type[Any]) -> None:
    assert pickle.loads(pickle.dumps(kind(4))) == kind(4)  # of our own


def test_only_what_is_made_often_is_compiled() -> None:
    """Python's own decorator would compile six functions for each class, whether it is used or not."""
    seldom, often = (_classes(records.dataclass, {"frozen": True})[0] for _ in range(2))
    made = [seldom(first=1), *(often(first=k) for k in range(17))]
    assert [one.first for one in made] == [1, *range(17)]
    assert often.__init__.__code__.co_varnames[:2] == ("self", "first")
    assert seldom.__init__.__code__.co_varnames[:2] == ("self", "arguments")
