"""The commit that ``run.json`` names."""

from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path

import pytest

from simcore.timeline.facts import asked_commit, source_commit


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, outside of any checkout."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "somebody")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "somebody@example.org")
    return tmp_path


def git(tree: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(tree), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_tree_is_named_by_its_commit_and_whether_it_was_changed(tree: Path) -> None:
    assert source_commit(tree) is None
    git(tree, "init")
    assert source_commit(tree) is None  # nothing is committed yet
    (tree / "file").write_text("one")
    git(tree, "add", "file")
    git(tree, "commit", "-m", "one")
    commit = git(tree, "rev-parse", "HEAD")
    assert source_commit(tree) == commit
    (tree / "other").write_text("not tracked")
    assert source_commit(tree) == commit
    (tree / "file").write_text("two")
    assert source_commit(tree) == f"{commit}+changes"


def test_asking_for_the_commit_writes_nothing(tree: Path) -> None:
    git(tree, "init")
    (tree / "file").write_text("one")
    git(tree, "add", "file")
    git(tree, "commit", "-m", "one")
    index = (tree / ".git" / "index").read_bytes()
    os.utime(tree / "file", (1, 1))  # git would note the file's new time
    assert source_commit(tree) == git(tree, "rev-parse", "HEAD")
    assert (tree / ".git" / "index").read_bytes() == index


def test_git_ends_with_the_block_even_if_nobody_waits_for_it(tree: Path) -> None:
    git(tree, "init")
    with asked_commit(tree) as answer:
        assert isinstance(answer, functools.partial)
        (process,) = answer.args
    assert process.returncode is not None


def test_without_git_no_commit_is_known(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tree))
    assert source_commit(tree) is None
