"""What is written appears whole or not at all, whoever writes, dies or keeps files there."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from simcore.errors import InputError
from simcore.files import MANIFEST, check_folder, folder_name, whole_file, whole_folder, write_manifest

ROOT = Path(__file__).parents[2]


def write(path: Path, **files: str) -> None:
    with whole_folder(path, "run") as fresh:
        for name, text in files.items():
            (fresh / name).write_text(text)


def held(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir() if path.name != MANIFEST}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@contextmanager
def killed_writer(target: Path, block: str) -> Iterator[None]:
    """Another process that is killed (-9) where ``block``, in a folder to be ``target``, waits."""
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom simcore.files import whole_folder\n"
        f"with whole_folder(Path({str(target)!r}), 'run') as fresh:\n    {block}\n"
        "    print('ready', flush=True)\n    time.sleep(60)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline() == b"ready\n"
    try:
        yield
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()


def test_a_folder_replaces_its_predecessor_and_leaves_nothing_else(tmp_path: Path) -> None:
    write(tmp_path / "a" / "run", one="1", two="2")
    write(tmp_path / "a" / "run", two="3")
    assert held(tmp_path / "a" / "run") == {"two": "3"}
    check_folder(tmp_path / "a" / "run", "run")
    assert names(tmp_path / "a") == ["run"]


def test_a_folder_with_foreign_files_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    folder.mkdir()
    (folder / "run.json").write_text("{}")
    (folder / "thesis.txt").write_text("years")
    with pytest.raises(InputError, match=r"no manifest.json names 'run.json' and 1 more as ours"):
        write(folder, one="1")
    assert held(folder) == {"run.json": "{}", "thesis.txt": "years"}


@pytest.mark.parametrize("foreign", ["thesis.txt", "chapters/one.txt", "empty/"])
def test_files_put_beside_ours_are_named_and_kept(tmp_path: Path, foreign: str) -> None:
    write(tmp_path / "run", one="1")
    place = tmp_path / "run" / foreign
    (place if foreign.endswith("/") else place.parent).mkdir(parents=True, exist_ok=True)
    if not foreign.endswith("/"):
        place.write_text("years")
    with pytest.raises(InputError, match=f"holds '{foreign}', which this program did not write"):
        write(tmp_path / "run", one="2")
    assert place.exists() and (tmp_path / "run" / "one").read_text() == "1"


def test_files_that_appear_while_we_write_are_kept_where_one_sees_them(tmp_path: Path) -> None:
    write(tmp_path / "run", one="1")
    with whole_folder(tmp_path / "run", "run") as fresh:
        (fresh / "one").write_text("2")
        (tmp_path / "run" / "thesis.txt").write_text("years")
    assert held(tmp_path / "run") == {"one": "2"}
    (kept,) = (path for path in tmp_path.iterdir() if path.name != "run")
    assert re.fullmatch(r"run\.kept-\w{8}", kept.name)
    assert held(kept) == {"thesis.txt": "years"}


def test_a_manifest_leads_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years")
    write(tmp_path / "run", one="1")
    manifest = (tmp_path / "run" / MANIFEST).read_text()
    (tmp_path / "run" / MANIFEST).write_text(manifest.replace('"one"', '"../thesis.txt"'))
    for attempt in (lambda: write(tmp_path / "run", one="2"), lambda: check_folder(tmp_path / "run", "run")):
        with pytest.raises(InputError, match=r"'\.\./thesis\.txt' is not a file of this folder"):
            attempt()
    assert (tmp_path / "thesis.txt").read_text() == "years"


def test_links_are_followed_to_what_the_user_named_and_no_further(tmp_path: Path) -> None:
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "thesis.txt").write_text("years")
    (tmp_path / "latest").symlink_to(tmp_path / "real")
    write(tmp_path / "latest", one="1")
    assert held(tmp_path / "real") == {"one": "1"} and (tmp_path / "latest").is_symlink()
    (tmp_path / "real" / "books").symlink_to(tmp_path / "books")
    with pytest.raises(InputError, match="holds 'books'"):
        write(tmp_path / "latest", one="2")
    assert held(tmp_path / "books") == {"thesis.txt": "years"}


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (".", "working folder"),
        ("..", "working folder"),
        ("file", "is a file"),
        ("file/run", "Not a directory"),
        ("nul\0", "null byte"),
        ("bytes\udcff", "its name is not UTF-8"),
        ("x" * 300, "name too long"),
        ("circle", "Symlink loop|Too many levels"),
        ("graph", "not a run folder: it holds a graph"),
    ],
)
def test_what_is_no_place_for_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, message: str
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("file").write_text("mine")
    Path("circle").symlink_to("circle")
    with whole_folder(Path("graph"), "graph") as fresh:
        (fresh / "ops").write_text("")
    before = names(tmp_path), names(tmp_path / "here")
    with pytest.raises(InputError, match=message):
        write(Path(place), one="1")
    assert (names(tmp_path), names(tmp_path / "here")) == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda run: (run / "one").unlink(), "one: missing"),
        (lambda run: (run / "one").write_text("ab"), "one: 2 of 3 bytes"),
        (lambda run: (run / "one").write_text("abd"), "one: changed since it was written"),
        (lambda run: (run / "one").write_text("abcd"), "one: changed since it was written"),
        (lambda run: (run / MANIFEST).unlink(), "never finished, or written by an older version"),
        (lambda run: (run / MANIFEST).write_text('{"format": 1'), "not JSON, or truncated"),
        (lambda run: (run / MANIFEST).write_text('{"format": 2}'), "not a manifest of format 1"),
        (lambda run: (run / MANIFEST).write_text('{"format": 1, "files": []}'), "needs 'holds' and 'files'"),
        (
            lambda run: (run / MANIFEST).write_text('{"format": 1, "holds": "run", "files": {"one": 3}}'),
            "'one' needs 'bytes' and 'blake2b'",
        ),
    ],
)
def test_a_folder_that_is_not_as_written_is_refused(tmp_path: Path, change, message: str) -> None:
    write(tmp_path / "run", one="abc")
    (tmp_path / "run" / "notes.txt").write_text("beside it")
    check_folder(tmp_path / "run", "run")
    change(tmp_path / "run")
    with pytest.raises(InputError, match=message):
        check_folder(tmp_path / "run", "run")


@pytest.mark.parametrize("before", [False, True])
def test_what_a_killed_writer_left_goes_with_the_next(tmp_path: Path, before: bool) -> None:
    target = tmp_path / "run"
    if before:
        write(target, one="old")
    with killed_writer(target, "(fresh / 'one').write_text('half')"):
        # Alive: another writer does not touch what it has under way.
        write(target, one="meanwhile")
        assert len(names(tmp_path)) == 2
    assert held(target) == {"one": "meanwhile"}
    (left,) = (path for path in tmp_path.iterdir() if path != target)
    assert left.name.startswith(".run.partial-") and held(left / "new") == {"one": "half"}
    with pytest.raises(InputError, match="never finished"):
        check_folder(left / "new", "run")
    write(target, one="next")
    assert names(tmp_path) == ["run"] and held(target) == {"one": "next"}


def test_what_another_machine_has_under_way_is_left_for_a_day(tmp_path: Path) -> None:
    theirs = tmp_path / f".run.partial-00c0ffee-elsewhere-{os.getpid()}-0123abcd"  # containers count alike
    (theirs / "new").mkdir(parents=True)
    write(tmp_path / "run", one="1")
    assert theirs.exists()
    long_ago = time.time() - 25 * 3600
    os.utime(theirs, (long_ago, long_ago))
    write(tmp_path / "run", one="2")
    assert names(tmp_path) == ["run"]


def test_a_folder_set_aside_by_a_killed_writer_comes_back(tmp_path: Path) -> None:
    # Where a file system cannot swap folders at once, a kill between two renames leaves this.
    write(tmp_path / "run", one="old")
    with killed_writer(tmp_path / "run", "pass"):
        (work,) = (path for path in tmp_path.iterdir() if path.name != "run")
    (tmp_path / "run").rename(work / "old")
    with pytest.raises(RuntimeError), whole_folder(tmp_path / "run", "run"):
        raise RuntimeError
    assert held(tmp_path / "run") == {"one": "old"} and names(tmp_path) == ["run"]


@pytest.mark.parametrize("can_exchange", [True, False])
def test_of_writers_to_one_folder_the_last_wins_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_exchange: bool
) -> None:
    if not can_exchange:
        monkeypatch.setattr("simcore.files.beside._exchange", lambda one, other: False)
    failed: list[BaseException] = []

    def writer(text: str) -> None:
        try:
            for _ in range(10):
                write(tmp_path / "run", one=text, two=text)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=writer, args=(text,)) for text in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    check_folder(tmp_path / "run", "run")
    assert len(set(held(tmp_path / "run").values())) == 1
    assert names(tmp_path) == ["run"]


def test_a_full_disk_is_told_with_what_is_left(tmp_path: Path) -> None:
    for left in ("nothing is left of it", "what was there is as it was"):
        with (
            pytest.raises(InputError, match=f"cannot write .*run: No space left on device; {left}"),
            whole_folder(tmp_path / "run", "run") as fresh,
        ):
            (fresh / "one").write_text("half")
            raise OSError(errno.ENOSPC, "told by a library in its own words")
        write(tmp_path / "run", one="whole")
    assert held(tmp_path / "run") == {"one": "whole"} and names(tmp_path) == ["run"]


def test_a_file_in_a_folder_under_way_appears_with_it(tmp_path: Path) -> None:
    with whole_folder(tmp_path / "run", "run") as fresh:
        with whole_file(fresh / "picture.svg") as path:
            path.write_text("drawn")
        assert names(fresh) == ["picture.svg"]
    check_folder(tmp_path / "run", "run")
    assert held(tmp_path / "run") == {"picture.svg": "drawn"}


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, RuntimeError])
def test_a_file_appears_whole_or_not_at_all(tmp_path: Path, error: type[BaseException]) -> None:
    target = tmp_path / "new" / "page.svg"
    with pytest.raises(error), whole_file(target) as partial:
        partial.write_text("half")
        raise error
    assert names(tmp_path) == []
    with whole_file(target) as partial:
        assert partial.suffix == ".svg"
        partial.write_text("whole")
    with pytest.raises(error), whole_file(target) as partial:
        partial.write_text("half")
        raise error
    assert target.read_text() == "whole" and names(target.parent) == ["page.svg"]


def test_a_file_is_not_put_in_place_of_a_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder; name a file"), whole_file(tmp_path):
        pass


def test_devices_are_written_as_they_are() -> None:
    with whole_file(Path("/dev/null")) as path:
        assert path == Path("/dev/null")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt-175b-pp12-tp8-dp1", "gpt-175b-pp12-tp8-dp1"),
        ("two stages", "two-stages"),
        ("/etc/passwd", "etc-passwd"),
        ("../../x", "x"),
        ("..", "unnamed"),
        (".", "unnamed"),
        ("", "unnamed"),
        ("a/../b", "a-..-b"),
        ("nul\0byte", "nul-byte"),
        ("~/x; rm -rf *", "x-rm--rf-"),
        ("half \ud800 pair", "half-pair"),
    ],
)
def test_a_name_from_a_file_is_a_name_in_the_folder(tmp_path: Path, name: str, expected: str) -> None:
    assert folder_name(name) == expected
    assert (tmp_path / folder_name(name)).resolve().parent == tmp_path


def test_long_names_are_cut_and_still_told_apart() -> None:
    one, other = folder_name("x" * 300 + "1"), folder_name("x" * 300 + "2")
    assert len(one) == len(other) == 100 and one != other


def test_a_manifest_is_the_same_for_the_same_files(tmp_path: Path) -> None:
    write(tmp_path / "one", a="1", b="2")
    write(tmp_path / "two", b="2", a="1")
    text = (tmp_path / "one" / MANIFEST).read_text()
    assert text == (tmp_path / "two" / MANIFEST).read_text()
    write_manifest(tmp_path / "one", "run")  # it does not name itself
    assert (tmp_path / "one" / MANIFEST).read_text() == text
