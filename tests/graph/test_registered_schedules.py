"""A registered order is checked before a job runs: what is wrong with it is said, with the grid."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcore.errors import InputError
from simcore.graph.schedules import SCHEDULES, Action, ScheduleKind, gpipe, validate_schedule
from simcore.registry import Registry


def broken(change):
    """A kind whose order is GPipe's, changed."""

    def order(stages, microbatches, chunks, group):
        del group
        return change(gpipe(stages, microbatches, chunks))

    return ScheduleKind("broken", order)


def swapped(schedule):
    first = schedule[1]
    first[0], first[-1] = first[-1], first[0]
    return schedule


def all_with(action):
    return lambda schedule: [[*actions, action] for actions in schedule]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (swapped, r"stage 1, position 0: B3 can never run; it needs F3 of stage 1\n.*\n  stage 1: \[B3\] F1"),
        (lambda schedule: schedule[1:], r"it has 1 stages instead of 2\n  stage 0: F0 F1"),
        (all_with(Action("F", 4)), r"stage 0, position 8: F4 is of microbatch 4 and chunk 0.* \[F4\]"),
        (all_with(Action("F", -1)), "F-1 is of microbatch -1"),
        (all_with(Action("F", 0, 1)), r"F0\.1 is of microbatch 0 and chunk 1"),
        (all_with(Action("F", 0)), "stage 0 has 2 forwards of microbatch 0 instead of 1"),
        (all_with(Action("Z", 0)), r"position 8: Z0 is no Action of kind F, B, I, W\n.*\[Z0\]"),
        (all_with("F0"), "position 8: F0 is no Action"),
        (lambda schedule: [actions[:4] for actions in schedule], "stage 0 has 0 backwards"),
        (lambda schedule: [actions[:-1] for actions in schedule], "0 backwards.* of microbatch 3"),
        (lambda schedule: None, "test_registered_schedules.py: TypeError"),
        (lambda schedule: schedule[7], r"test_registered_schedules.py, line \d+: IndexError"),
    ],
)  # fmt: skip
def test_a_broken_order_is_refused_with_its_name_and_file(change, words):
    with pytest.raises(InputError, match=f"(?s){words}") as caught:
        broken(change).actions(2, 4, 1, 0)
    assert "schedule 'broken' of 2 stages, 4 microbatches" in str(caught.value)
    assert __file__ in str(caught.value)


def test_an_order_of_other_arguments_is_refused():
    with pytest.raises(
        InputError, match=r"'two': order gets \(stages, microbatches, chunks, group\).*\(a, b\)"
    ):
        ScheduleKind("two", lambda a, b: [])


@pytest.mark.parametrize("name", [name for name in SCHEDULES if SCHEDULES[name].proven])
@given(half=st.integers(1, 3), more=st.integers(0, 2), virtual=st.integers(1, 3), wider=st.integers(0, 1))
def test_what_is_proven_can_run(name, half, more, virtual, wider):
    kind = SCHEDULES[name]
    stages, chunks = 2 * half, kind.num_chunks or virtual
    group = stages + wider
    microbatches = 2 * group * (1 + more)
    order = kind.order(stages, microbatches, chunks, group)
    validate_schedule(order, kind.placement, (stages, microbatches, chunks))
    assert replace(kind, proven=False).actions(stages, microbatches, chunks, group) == order


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import os\nx = (\n", r"wrong\.py, line 2: SyntaxError"),
        ("from simcore import nothing\n", r"wrong\.py, line 1: ImportError: cannot import name 'nothing'"),
        ("x = 1\nlen(x)\n", r"wrong\.py, line 2: TypeError: object of type 'int'"),
        (
            "from simcore.graph.schedules.kind import ScheduleKind\nScheduleKind('x', len)\n",
            r"wrong\.py, line 2: schedule 'x': order gets",
        ),
    ],
)
def test_a_file_with_a_mistake_is_named(tmp_path, monkeypatch, text, words):
    folder = tmp_path / "things_of_a_test"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "wrong.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        things = Registry[int]("thing", "things_of_a_test")
        for _ in range(2):  # no half of a folder is taken for the whole
            with pytest.raises(InputError, match=words):
                len(things)
    finally:
        sys.modules.pop("things_of_a_test", None)


def test_a_name_is_registered_once():
    things = Registry[int]("thing", "simcore")
    things.register("one", 1)
    with pytest.raises(InputError, match="thing 'one' is registered twice"):
        things.register("one", 2)
