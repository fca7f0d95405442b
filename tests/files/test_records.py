"""Dataclasses that make their methods late behave like Python's own, whatever they are asked first."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys
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
def test_as_pythons_own(options: dict[str, bool], question: int) -> None:
    """Each question is the first that a class is asked."""
    for ours, pythons in zip(
        _classes(records.dataclass, options), _classes(dataclasses.dataclass, options), strict=True
    ):
        assert _answers(ours, question) == _answers(pythons, question)


@records.dataclass(frozen=True)
class Sent:
    """A record that is sent to another process."""

    number: int


def test_pickled() -> None:
    assert pickle.loads(pickle.dumps(Sent(4))) == Sent(4)  # of our own


def test_a_run_compiles_no_methods_of_unused_records() -> None:
    """What decorates classes that a run imports; Python's own would compile six functions for each."""
    program = """
import dataclasses
made = []
own = dataclasses._create_fn if hasattr(dataclasses, "_create_fn") else None
if own is not None:
    def counted(name, *arguments, **options):
        made.append(name)
        return own(name, *arguments, **options)
    dataclasses._create_fn = counted
import typer, numpy, pydantic, pyarrow, simpy
made.clear()
import simcore.apps.run.run_sim, simcore.apps.run.simulation, workloads.jobs
print(len(made))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 500  # of some 1,700
