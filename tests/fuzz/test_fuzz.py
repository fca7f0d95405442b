"""Mutated inputs of every format are answered or refused, never anything else."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from simcore.errors import InputError
from tests.fuzz import (  # noqa: F401  they register their formats
    commands,
    described,
    launches,
    machine,
    recordings,
    stored,
    swept,
)
from tests.fuzz.cases import CORPUS, FORMATS, Answer, Case, Format, drawn, from_json, to_json
from tests.fuzz.machine import run_blocks
from tests.fuzz.shrink import shrunk


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.json")), ids=lambda path: path.stem)
def test_what_was_found_once_stays_mended(path: Path) -> None:
    outcome = machine.outcome_of(from_json(path.read_text(encoding="utf-8")))
    assert outcome.good, f"{outcome.signature}: {outcome.said}"


def _says(answer: Answer) -> Callable[[Path, Case], Answer]:
    return lambda given, case: answer


def _raises(error: BaseException) -> Callable[[Path, Case], Answer]:
    def door(given: Path, case: Case) -> Answer:
        raise error

    return door


def _does(act: Callable[[Path], object]) -> Callable[[Path, Case], Answer]:
    def door(given: Path, case: Case) -> Answer:
        act(given)
        return Answer(1.0)

    return door


@pytest.mark.parametrize(
    ("door", "kind"),
    [
        (_says(Answer(1.0, {"a": 1.0})), "fine"),
        (_raises(InputError("no")), "refused"),
        (_raises(InputError(" ")), "mute"),
        (_raises(KeyError("fp32")), "traceback"),
        (_says(Answer(0.0)), "wrong"),
        (_says(Answer(float("nan"))), "wrong"),
        (_says(Answer(1.0, {"a": [float("inf")]})), "wrong"),
        (_does(lambda given: time.sleep(9)), "hang"),
        (_does(lambda given: bytearray(3 << 30)), "memory"),
        (_does(lambda given: Path("left").touch()), "left"),
        (_does(lambda given: (given.parents[1] / "outside").touch()), "left"),
        (_does(lambda given: (given / "in").write_text("changed")), "left"),
        (_does(lambda given: os._exit(3)), "died"),
    ],
)
def test_every_kind_of_end_is_told(
    monkeypatch: pytest.MonkeyPatch, door: Callable[[Path, Case], Answer], kind: str
) -> None:
    case = Case("one", {"in": b"as given"})
    monkeypatch.setitem(FORMATS, "one", Format("one", lambda rng: case, door))
    monkeypatch.setitem(FORMATS, "fine", Format("fine", lambda rng: case, _says(Answer(1.0))))
    monkeypatch.setattr(machine, "SECONDS", 1)
    ((_, outcomes),) = run_blocks([lambda: iter([case, Case("fine"), case])])
    assert [outcome.kind for outcome in outcomes] == [kind, "fine", kind]


def test_a_key_that_nobody_knows_must_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        FORMATS, "one", Format("one", lambda rng: Case("one"), _says(Answer(1.0, ["no 'heds'"])))
    )
    assert machine.outcome_of(Case("one", unknown="heds")).kind == "fine"
    assert machine.outcome_of(Case("one", unknown="layrs")).kind == "wrong"


@pytest.mark.parametrize("name", FORMATS)
def test_a_case_is_told_by_format_seed_and_number(name: str) -> None:
    cases = [drawn(name, 1, number) for number in range(20)]
    assert cases == [drawn(name, 1, number) for number in range(20)]
    assert len({(*case.files.values(), *case.words) for case in cases}) > 9
    plain = [Case(name, case.files, case.words) for case in cases]
    assert [from_json(to_json(case)) for case in plain] == plain


def test_what_fails_is_made_small() -> None:
    rng = Random(0)
    lines = [f"line {rng.random()}" for _ in range(40)]
    case = Case("one", {"a": "\n".join([*lines, "bad", *lines]).encode(), "b": b"x"}, ("p", "q"))
    small = shrunk(case, lambda one: b"bad" in one.files.get("a", b"") and "q" in one.words)
    assert small == Case("one", {"a": b"bad"}, ("q",))
    tree = Case("one", {"a": b'{"x": [1, 2, {"bad": 0, "y": [3]}], "z": {}}'})
    small = shrunk(tree, lambda one: b"bad" in one.files.get("a", b""))
    assert small.files["a"] == b'{"x": [{"bad": 0}]}'


@pytest.mark.parametrize("name", FORMATS)
def test_mutated_inputs_are_answered_or_refused(name: str) -> None:
    """The same few every time; longer runs, with other seeds: ``scripts/fuzz.py``."""
    ((_, outcomes),) = run_blocks([lambda: (drawn(name, 0, number) for number in range(25))])
    failed = {
        number: f"{outcome.signature}: {outcome.said}"
        for number, outcome in enumerate(outcomes)
        if not outcome.good
    }
    assert failed == {}
