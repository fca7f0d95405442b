"""Files that grow by lines: half a line costs that line alone."""

from __future__ import annotations

import resource
import signal
import threading
from pathlib import Path

import pytest

from simcore.errors import InputError
from simcore.files import append_line


@pytest.mark.parametrize("torn", ["", "ha"])
def test_half_a_line_costs_that_line_alone(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "log"
    append_line(path, "first")
    path.write_text(path.read_text() + torn)
    append_line(path, "second")
    assert path.read_text().splitlines() == ["first", *filter(None, [torn]), "second"]


def test_lines_of_several_writers_stay_apart(tmp_path: Path) -> None:
    path = tmp_path / "log"

    def write(letter: str) -> None:
        for _ in range(20):
            append_line(path, letter * 500)

    threads = [threading.Thread(target=write, args=(letter,)) for letter in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(path.read_text().splitlines()) == [letter * 500 for letter in "abc" for _ in range(20)]


def test_a_full_disk_takes_no_half_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    append_line(path, "first")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(InputError, match="only a part of a line was taken"):
            append_line(path, "second")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert path.read_text() == "first\n"


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Is a directory"):
        append_line(tmp_path, "line")
    with pytest.raises(InputError, match="No such file"):
        append_line(tmp_path / "no" / "log", "line")
