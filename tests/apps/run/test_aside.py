"""Work that a fork does beside this process: the same result, the same errors, and no fork left behind."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Generator, Iterator
from functools import partial
from pathlib import Path

import pytest

from simcore.apps.run.aside import Aside, aside, once
from simcore.errors import OutOfMemoryError


@pytest.mark.parametrize("forked", [True, False])
def test_what_work_gives_comes_back_and_its_files_stay(forked: bool, tmp_path: Path) -> None:
    def work() -> int:
        (tmp_path / "file").write_text("written")
        return os.getpid()

    begun = Aside(partial(once, work), forked=forked)
    assert (begun.result() != os.getpid()) == forked
    assert begun.result() == begun.result()
    assert (tmp_path / "file").read_text() == "written"


@pytest.mark.parametrize("forked", [True, False])
def test_each_thing_that_is_found_comes_before_the_next(forked: bool, tmp_path: Path) -> None:
    def work() -> Iterator[str]:
        yield "first"
        while forked and not (tmp_path / "go on").is_file():
            time.sleep(0.001)
        yield "second"
        raise OutOfMemoryError("stage 3 does not fit")

    with aside(work, forked=forked) as begun:
        assert begun.result() == "first"
        (tmp_path / "go on").touch()
        assert begun.result(1) == "second"
        assert begun.result() == "first"
        with pytest.raises(OutOfMemoryError):
            begun.result(2)


@pytest.mark.parametrize("forked", [True, False])
def test_a_later_fork_can_wait_for_what_an_earlier_one_does_first(forked: bool, tmp_path: Path) -> None:
    def first() -> Iterator[str]:
        time.sleep(0.05 * forked)
        (tmp_path / "file").write_text("whole")
        yield "written"
        time.sleep(600 * forked)

    def second() -> str:
        earlier.wait()
        earlier.wait()
        return (tmp_path / "file").read_text()

    with aside(first, forked=forked) as earlier, aside(partial(once, second), forked=forked) as later:
        assert later.result() == "whole"
        assert earlier.result() == "written"


def test_who_waits_for_a_fork_that_fails_goes_on() -> None:
    def work() -> int:
        raise OutOfMemoryError("does not fit")

    failing = Aside(partial(once, work), forked=True)
    failing.wait()
    with pytest.raises(OutOfMemoryError):
        failing.result()


@pytest.mark.parametrize("forked", [True, False])
def test_errors_are_those_of_the_work(forked: bool) -> None:
    def work() -> int:
        raise OutOfMemoryError("stage 3 does not fit")

    with pytest.raises(OutOfMemoryError, match="stage 3 does not fit"):
        Aside(partial(once, work), forked=forked).result()


def test_a_check_raises_as_soon_as_the_fork_has_and_waits_for_nothing() -> None:
    def work(delay_s: float) -> int:
        time.sleep(delay_s)
        raise OutOfMemoryError("does not fit")

    slow = Aside(partial(once, partial(work, 60.0)), forked=True)
    slow.check()  # not yet
    slow.end()
    quick = Aside(partial(once, partial(work, 0.0)), forked=True)
    with pytest.raises(OutOfMemoryError):
        for _ in range(10_000):
            quick.check()
            time.sleep(0.001)


def test_a_fork_that_the_system_ends_is_an_error() -> None:
    ended = Aside(partial(once, lambda: os.kill(os.getpid(), signal.SIGKILL)), forked=True)
    with pytest.raises(MemoryError):
        ended.result()


def test_a_fork_ends_with_its_block(tmp_path: Path) -> None:
    def work() -> None:
        (tmp_path / "number").write_text(f"{os.getpid()} ")
        time.sleep(600)

    with aside(partial(once, work)) as begun:
        if begun.is_forked:
            while not (tmp_path / "number").is_file() or " " not in (tmp_path / "number").read_text():
                time.sleep(0.001)
    if (tmp_path / "number").is_file():
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / "number").read_text()), 0)


@pytest.mark.parametrize("forked", [True, False])
def test_work_goes_on_with_what_it_is_told(forked: bool) -> None:
    def work() -> Generator[int | None, int, None]:
        yield os.getpid()
        first = yield None
        second = yield None
        yield first + 10 * second

    with aside(work, forked=forked, awaited=2) as begun:
        begun.tell(3)
        begun.tell(4)
        begun.wait()
        assert begun.result(1) == 43
        assert (begun.result() == os.getpid()) or begun.is_forked


def test_who_is_told_something_after_a_failure_says_why() -> None:
    def work() -> int:
        raise OutOfMemoryError("does not fit")

    failing = Aside(partial(once, work), forked=True)
    failing.wait()
    failing.tell(bytes(1 << 20))
    with pytest.raises(OutOfMemoryError):
        failing.result()
