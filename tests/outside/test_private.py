"""Folders from which programs are run are the user's alone."""

import os

import pytest

from simcore.apps.studies.ns3.runner import Ns3
from simcore.errors import InputError
from simcore.outside import private_folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "simcore").mkdir()
    return tmp_path / "simcore"


def test_it_lies_in_the_users_cache_and_is_his_alone(own_cache):
    for _ in range(2):  # made, then found
        folder = private_folder("built")
        assert folder == own_cache / "built"
        assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_one_that_others_may_write_to_is_refused(own_cache, mode):
    (own_cache / "built").mkdir()
    (own_cache / "built").chmod(mode)
    with pytest.raises(InputError, match=f"others may write to it .mode {mode:o}, allowed: 700"):
        private_folder("built")


def test_a_link_is_refused(own_cache, tmp_path):
    (own_cache / "built").symlink_to(tmp_path, target_is_directory=True)
    with pytest.raises(InputError, match="it is not a folder"):
        private_folder("built")


def test_another_users_is_refused(own_cache, monkeypatch):
    (own_cache / "built").mkdir(mode=0o700)
    me = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me + 1)
    with pytest.raises(InputError, match=f"belongs to another user .number {me}"):
        private_folder("built")


def test_a_home_that_cannot_be_written_leaves_the_temporary_folder(own_cache, tmp_path, monkeypatch):
    (own_cache.parent / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))  # no folder can be made in a file
    shared = tmp_path / "shared"
    shared.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(shared))
    assert private_folder("built") == shared / f"simcore-built-{os.getuid()}"
    (shared / f"simcore-other-{os.getuid()}").mkdir()
    (shared / f"simcore-other-{os.getuid()}").chmod(0o777)
    with pytest.raises(InputError, match="others may write to it"):
        private_folder("other")


def test_a_program_planted_in_the_temporary_folder_is_not_run_as_ns3(own_cache, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "shared"))
    monkeypatch.setenv("CXX", "false")  # builds nothing: what ran would have been there before
    planted = tmp_path / "shared" / f"simcore-ns3-{os.getuid()}"
    planted.mkdir(parents=True)
    planted.chmod(0o777)
    program = planted / "0123456789abcdef"
    program.write_text("#!/bin/sh\necho 1000000 1\n")
    program.chmod(0o755)

    class Known:
        """Every text has the hash by which the planted program is called."""

        def hexdigest(self):
            return program.name

    monkeypatch.setattr("hashlib.sha256", lambda _: Known())
    with pytest.raises(InputError, match="cannot be built"):
        Ns3((), "3.37").time_us("")
