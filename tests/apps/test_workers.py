"""Worker processes that are killed: their jobs are done again, once, and nobody waits for ever."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from simcore.apps.workers import each
from simcore.errors import InputError


def doubled(number: int) -> int:
    return 2 * number


def killed_once(marker: Path) -> str:
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return marker.name


def killed_always(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def children() -> list[int]:
    return [child.pid for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]


def test_all_jobs_are_done_and_no_worker_stays() -> None:
    before = children()
    assert sorted(each(doubled, range(20), 3, str)) == [2 * number for number in range(20)]
    assert children() == before


def test_what_a_killed_worker_did_is_done_again(tmp_path: Path) -> None:
    markers = [tmp_path / f"job{number}" for number in range(4)]
    found = each(killed_once, markers, 2, str)
    assert sorted(found) == [marker.name for marker in markers]


def test_a_job_that_kills_its_worker_twice_is_named() -> None:
    before = children()
    with pytest.raises(
        InputError, match="job 3: its worker process was ended twice, the last time by signal 9"
    ):
        list(each(killed_always, range(6), 2, lambda number: f"job {number}"))
    assert children() == before


def test_workers_end_when_nobody_wants_more() -> None:
    before = children()
    with closing(each(doubled, range(100), 2, str)) as results:
        next(results)
    assert children() == before
