"""The package as users get it, on the oldest and the newest of what it allows: ``check_versions.py``.

A source distribution is made from a copy of the tracked files, the wheel from it, and nothing of the project
may be missing there.  Then, each in an empty environment outside of the checkout: the oldest Python with
constraints-oldest.txt, and the newest Python at hand with constraints.txt.  There every command answers
``--help``, the default job runs from another folder, and ten jobs give the digests of ``tests/goldens``; what
the default job says must be the same everywhere.  Packages come from the index that pip is configured with.
Exit code 1: something differs or is missing.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import typer

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGES: Final = ("simcore", "workloads", "hardware_profiles")
#: What the ten jobs need beside the package.
TESTS: Final = (
    "tests/engine/digests.py", "tests/engine/ten_jobs.py", "tests/engine/twelve_jobs.py",
    "tests/imports/traces.py", "tests/goldens/results.json",
)  # fmt: skip
_NEWEST_MINOR: Final = 30  # of Python 3, looked for
_TIMED: Final = ("wall_s", "parts_s")


@dataclass(frozen=True)
class Interpreter:
    """A Python: (3, minor) and the program."""

    version: tuple[int, int]
    program: str


@dataclass(frozen=True)
class Environment:
    """A Python and the file that says which versions of the packages it gets."""

    python: Interpreter
    constraints: Path

    def __str__(self) -> str:
        return f"Python {'.'.join(map(str, self.python.version))}, {self.constraints.name}"


@dataclass(frozen=True)
class Checked:
    """What was found wrong in an environment, what the default job said there, and seconds that it took."""

    flaws: tuple[str, ...]
    said: Mapping[str, Any]
    seconds: float


def check_versions() -> None:
    """Build, install and compare; exit code 1 when something differs or is missing."""
    pythons = interpreters(lowest_python())
    for environment in (found := environments(pythons)):
        print(f"to check: {environment}", flush=True)
    with tempfile.TemporaryDirectory(prefix="check-versions-") as name:
        folder = Path(name)
        wheel, flaws = build(folder)
        with ThreadPoolExecutor(min(len(found), os.cpu_count() or 1)) as pool:
            checked = list(pool.map(lambda one: check(one, wheel, folder), found))
    for environment, one in zip(found, checked, strict=True):
        print(f"{environment}: {one.seconds:.0f} s, {len(one.flaws)} flaws")
        flaws += [f"{environment}: {flaw}" for flaw in one.flaws]
        flaws += [
            f"{environment}: {key} of the default job is {one.said.get(key)!r:.100}, but"
            f" {checked[0].said.get(key)!r:.100} with {found[0]}"
            for key in checked[0].said.keys() | one.said.keys()
            if key not in _TIMED and one.said.get(key) != checked[0].said.get(key)
        ]
    print("\n".join(flaws) or "all as it should be")
    raise typer.Exit(int(bool(flaws)))


def lowest_python() -> tuple[int, int]:
    """The oldest Python that setup.cfg allows."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    major, minor = config["options"]["python_requires"].removeprefix(">=").split(".")
    return int(major), int(minor)


def interpreters(lowest: tuple[int, int]) -> list[Interpreter]:
    """The Pythons at hand, oldest first: this one, those on PATH, and pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    programs = [sys.executable]
    for minor in range(lowest[1], _NEWEST_MINOR):
        programs += filter(None, [shutil.which(f"python3.{minor}")])
        programs += map(str, sorted(pyenv.glob(f"versions/3.{minor}.*/bin/python")))
    found: dict[tuple[int, int], Interpreter] = {}
    for program in programs:
        # A shim may stand for a Python that is not there.
        done = run([program, "-c", "import sys, venv, ensurepip; print(*sys.version_info[:2])"])
        if done.returncode == 0:
            major, minor = map(int, done.stdout.split())
            found.setdefault((major, minor), Interpreter((major, minor), program))
    return [found[version] for version in sorted(found) if version >= lowest]


def environments(pythons: Sequence[Interpreter]) -> list[Environment]:
    """The oldest Python with the oldest packages, the newest with the newest; says what is not at hand."""
    lowest, oldest, newest = lowest_python(), pythons[0], pythons[-1]
    if oldest.version != lowest:
        print(f"skipped: Python {lowest[0]}.{lowest[1]} is not at hand, the oldest there is stands for it")
    if len(pythons) == 1:
        print(f"skipped: no Python newer than {oldest.version[0]}.{oldest.version[1]} is at hand")
    return [
        Environment(oldest, ROOT / "constraints-oldest.txt"),
        Environment(newest, ROOT / "constraints.txt"),
    ]


def build(folder: Path) -> tuple[Path, list[str]]:
    """The wheel, by way of a source distribution, in ``folder``; and which files they lack."""
    listed = run(["git", "ls-files"], cwd=ROOT)
    if listed.returncode:
        raise SystemExit(f"the tracked files are not known: {listed.stderr.strip()}")
    tracked = listed.stdout.splitlines()
    source = folder / "source"
    for name in tracked:
        if name.split("/")[0] in PACKAGES or "/" not in name:
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, source / name)
    must([sys.executable, "setup.py", "--quiet", "sdist", "--dist-dir", str(folder)], cwd=source)
    (sdist,) = folder.glob("*.tar.gz")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    must([*pip, "--wheel-dir", str(folder), str(sdist)], cwd=folder)
    (wheel,) = folder.glob("*.whl")
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = set(archive.namelist())
    needed = [name for name in tracked if name.split("/")[0] in PACKAGES]
    flaws = [f"{name} is not in the wheel" for name in needed if name not in in_wheel]
    flaws += [
        f"{name} is not in the source distribution"
        for name in [*needed, "LICENSE", "README.md", "setup.cfg", "setup.py"]
        if name not in in_sdist
    ]
    flaws += [
        f"{name} is in the wheel" for name in sorted(in_wheel)
        if name.split("/")[0] not in PACKAGES and ".dist-info/" not in name
    ]  # fmt: skip
    return wheel, flaws


def check(environment: Environment, wheel: Path, folder: Path) -> Checked:
    """Install the wheel into an empty environment in ``folder``, and try it there."""
    began = time.perf_counter()
    home = folder / re.sub(r"\W+", "-", str(environment))
    work = home / "work"
    work.mkdir(parents=True)
    must([environment.python.program, "-m", "venv", str(home / "venv")], cwd=work)
    programs = home / "venv" / "bin"
    pip = [str(programs / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    must([*pip, "--no-compile", "--constraint", str(environment.constraints), str(wheel)], cwd=work)
    flaws: list[str] = []

    command = str(programs / "simcore")
    listed = run([command, "--help"], cwd=work)
    names = re.findall(r"^\W{0,3}([a-z]+(?:-[a-z]+)*) {2,}\S", listed.stdout, re.M)
    if listed.returncode or len(names) < 10:
        flaws.append(
            f"simcore --help: exit code {listed.returncode}, commands {names}: {listed.stderr[-300:]}"
        )
    for name in names:
        done = run([command, name, "--help"], cwd=work)
        if done.returncode or "Usage:" not in done.stdout:
            flaws.append(f"simcore {name} --help: exit code {done.returncode}: {done.stderr[-300:]}")

    done = run([command, "run-sim", "--json", "--out", "default"], cwd=work)
    said: dict[str, Any] = {}
    if done.returncode:
        flaws.append(f"the default job: exit code {done.returncode}: {done.stderr[-500:]}")
    else:
        said = json.loads(done.stdout)
        done = run([command, "report", "default"], cwd=work)
        if done.returncode:
            flaws.append(f"the default job's report: exit code {done.returncode}: {done.stderr[-500:]}")

    for name in TESTS:
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, work / name)
    done = run([str(programs / "python"), "-m", "tests.engine.ten_jobs"], cwd=work)
    if done.returncode:
        flaws.append(f"the ten jobs: {done.stdout.strip()[-1500:]}{done.stderr.strip()[-500:]}")
    return Checked(tuple(flaws), said, time.perf_counter() - began)


def run(command: Sequence[str], cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a program outside of this one's environment; what it prints is kept."""
    outside = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    # Tables of a terminal that is wide enough: names of commands are read from them.
    outside |= {"COLUMNS": "120", "TERM": "dumb"}
    return subprocess.run(command, cwd=cwd, env=outside, capture_output=True, text=True, check=False)


def must(command: Sequence[str], cwd: Path) -> None:
    """As :func:`run`; ends this one with what was said where it fails."""
    done = run(command, cwd)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:6])} ...: exit code {done.returncode}\n{done.stderr[-2000:]}")


if __name__ == "__main__":
    typer.run(check_versions)
