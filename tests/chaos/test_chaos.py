"""A few cases of ``scripts/chaos.py``, and that it sees what is wrong."""

from __future__ import annotations

import os
import posix
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.chaos.commands import COMMANDS
from tests.chaos.play import Chaos, table


@pytest.fixture(autouse=True)
def _waits_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is killed here writes as it does for users; other tests do not wait (tests/conftest.py)."""
    monkeypatch.setattr(os, "fsync", posix.fsync)


QUICK = [command for command in COMMANDS if command.name != "trace"]


def test_whatever_is_killed_or_disturbed_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    chaos = Chaos(tmp_path, 1, commands=QUICK)
    for _ in range(4):
        chaos.kill()
    for fault in chaos.faults:
        fault()
    assert chaos.found.wrong == []
    assert chaos.found.counts.total() >= 8  # nowhere can be read-only for root without disks of its own
    assert all(len(line) <= 80 for line in table(chaos.found.counts).splitlines())


def test_a_folder_that_is_written_in_its_place_is_found_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def in_place(path: Path, kind: str) -> Iterator[Path]:
        path.mkdir(exist_ok=True)
        yield path

    chaos = Chaos(tmp_path, 1, commands=[command for command in QUICK if command.name == "run"])
    monkeypatch.setattr("simcore.apps.run.question.whole_folder", in_place)
    for _ in range(2):
        chaos.kill()
    assert any(
        "run, kill -9: the next run ends with 0 and leaves broken" in line for line in chaos.found.wrong
    )
