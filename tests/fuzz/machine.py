"""Runs cases in forked workers under limits of time and memory, and judges what came of them."""

from __future__ import annotations

import contextlib
import gc
import json
import math
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from simcore.apps.errors import shown
from simcore.errors import SimcoreError
from tests.fuzz.cases import FORMATS, Answer, Case
from tests.fuzz.ended import UnexpectedEndError

SECONDS, GRACE_S = 20, 8
MEMORY = 2 << 30
GOOD = ("fine", "refused")
KINDS = (*GOOD, "traceback", "hang", "memory", "wrong", "mute", "left", "died")
_ROOT = str(Path(__file__).parents[2])


@dataclass(frozen=True)
class Outcome:
    """What came of a case: one of :data:`KINDS`, where it went wrong, what was said."""

    kind: str
    where: str = ""
    said: str = ""

    @property
    def good(self) -> bool:
        """Whether the product did what it should."""
        return self.kind in GOOD

    @property
    def signature(self) -> str:
        """The same for cases that fail of one cause."""
        return f"{self.kind} {self.where}"


class TooLong(BaseException):
    """A case took longer than it may."""


class Folders:
    """A folder with what a case is made of, and one to work in: what is left there is seen."""

    began_s = looked_s = 0.0  # processor times at which the case began, and was last looked at

    def __init__(self, base: str) -> None:
        """Make both below ``base``."""
        self.root = Path(tempfile.mkdtemp(dir=base))
        self.given, self.work = self.root / "a" / "given", self.root / "a" / "here"
        self.given.mkdir(parents=True)
        self.work.mkdir()

    def fill(self, case: Case) -> None:
        """Put the case's files there, and nothing else anywhere."""
        self.given.mkdir(parents=True, exist_ok=True)
        for name, data in case.files.items():
            path = self.given / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        os.chdir(self.work)

    def clean(self, case: Case, allowed: Iterable[str] = ()) -> str:
        """Empty both; returns what was left or changed that should not be."""
        inside = {str(path.relative_to(self.root)) for path in _files(self.root)}
        given = {os.path.normpath(f"a/given/{name}") for name in case.files}
        changed = [name for name, data in case.files.items() if _content(self.given / name) != data]
        left = {
            name for name in inside - given if not name.startswith(tuple(f"a/here/{one}" for one in allowed))
        }
        os.chdir(self.root)
        if inside:
            for path in self.root.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            self.work.mkdir(parents=True)
        return ", ".join([*sorted(left), *(f"{name} changed" for name in changed)])


def _files(folder: Path) -> Iterator[Path]:
    """Every file below, at any depth."""
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            yield from _files(Path(entry))
        else:
            yield Path(entry)


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def tried(case: Case, folders: Folders) -> Outcome:
    """Show the case to its door, in this process, and judge."""
    one = FORMATS[case.format]
    folders.fill(case)
    try:
        Folders.began_s = Folders.looked_s = time.process_time()
        signal.alarm(SECONDS)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", RuntimeWarning)  # of numpy: a number that came out wrong
                outcome = _judged(one.door(folders.given, case), case)
        finally:
            signal.alarm(0)
    except SimcoreError as error:
        outcome = _refused(error)
    except TooLong:
        outcome = Outcome("hang", _place(), f"not done after {SECONDS} s")
    except MemoryError:
        outcome = Outcome("memory", _place(), "MemoryError")
    except UnexpectedEndError as error:
        kind = "traceback" if "Traceback" in str(error) else "wrong"
        outcome = Outcome(kind, error.where, str(error)[-900:])
    except Exception as error:
        outcome = Outcome("traceback", f"{type(error).__name__} {_place()}", f"{error}"[:500])
    left = folders.clean(case, one.writes if outcome.kind == "fine" else ())
    return Outcome("left", "", left[:300]) if left and outcome.good else outcome


def _refused(error: SimcoreError) -> Outcome:
    text = str(error)
    if not text.strip() or "Traceback" in text:
        return Outcome("mute", _place(), text[:300])
    return Outcome("refused", "", shown(text))


def _judged(answer: Answer, case: Case) -> Outcome:
    if answer.wrong:
        return Outcome("wrong", answer.wrong)
    if answer.seconds is not None and not (0 < answer.seconds < math.inf):
        return Outcome("wrong", "step time", f"a step of {answer.seconds} s")
    try:
        said = json.dumps(answer.said, allow_nan=False, default=str)
    except ValueError:
        return Outcome("wrong", "not finite", json.dumps(answer.said, default=str)[:300])
    if case.unknown and case.unknown not in said:
        return Outcome("wrong", "unknown key", f"{case.unknown!r} was accepted without a word")
    return Outcome("fine")


def _place() -> str:
    """File, line and function of ours, innermost, of the exception at hand."""
    frames = [f for f in traceback.extract_tb(sys.exc_info()[2]) if f.filename.startswith(_ROOT)]
    ours = [f for f in frames if "/tests/" not in f.filename and "/.venv/" not in f.filename] or frames
    return f"{ours[-1].filename[len(_ROOT) + 1 :]}:{ours[-1].lineno} {ours[-1].name}" if ours else ""


def limited() -> None:
    """Hold this process to the limits of a case."""

    def end(number: int, frame: Any) -> None:
        now = time.process_time()
        used, since = now - Folders.began_s, now - Folders.looked_s
        if used < SECONDS and since > SECONDS / 100:  # at work, but others have the machine
            Folders.looked_s = now
            signal.alarm(max(1, round(SECONDS - used)))
            return
        raise TooLong

    signal.signal(signal.SIGALRM, end)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    os.environ["SIMCORE_LIMITS"] = f"memory={MEMORY}"
    gc.set_threshold(50_000, 20, 100)


def _work(cases: Iterable[Case], told: Connection, base: str) -> None:
    """The life of a worker: what came of each case goes through ``told``."""
    limited()
    folders = Folders(base)
    try:
        for case in cases:
            told.send(tried(case, folders))
    except Exception:  # of ours: a case that could not be drawn
        told.send(traceback.format_exc())
    told.close()
    os.chdir(base)
    shutil.rmtree(folders.root, ignore_errors=True)


@dataclass
class _Worker:
    """A process on its way through a block of cases; ``done`` of them are told."""

    make: Callable[[], Iterator[Case]]
    outcomes: list[Outcome]
    process: multiprocessing.process.BaseProcess
    told: Connection
    heard: float


def run_blocks(
    blocks: Iterable[Callable[[], Iterator[Case]]], jobs: int = 2
) -> Iterator[tuple[int, list[Outcome]]]:
    """Outcomes of blocks of cases, as blocks are done, with the block's number; ``jobs`` at a time.

    A block is a function, so that a worker draws its cases itself.  A worker that dies or hangs ends that
    case; another goes on behind it.
    """
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    running: dict[int, _Worker] = {}
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=memory, ignore_cleanup_errors=True) as base:
        try:
            yield from _outcomes(blocks, jobs, base, running)
        finally:  # also when it is interrupted: nobody may write there any more
            for worker in running.values():
                worker.process.kill()
                worker.process.join()


def _outcomes(
    blocks: Iterable[Callable[[], Iterator[Case]]], jobs: int, base: str, running: dict[int, _Worker]
) -> Iterator[tuple[int, list[Outcome]]]:
    waiting, more = enumerate(blocks), True
    while more or running:
        while more and len(running) < jobs:
            entry = next(waiting, None)
            more = entry is not None
            if entry is not None:
                running[entry[0]] = _started(entry[1], [], base)
        wait([worker.told for worker in running.values()], timeout=1.0)
        for number, worker in list(running.items()):
            ended = _heard(worker)
            if ended == "done":
                del running[number]
                yield number, worker.outcomes
            elif ended:
                said = "the process ended" if ended == "died" else "killed"
                worker.outcomes.append(Outcome(ended, "", said))
                running[number] = _started(worker.make, worker.outcomes, base)


def _started(make: Callable[[], Iterator[Case]], outcomes: list[Outcome], base: str) -> _Worker:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    skip = len(outcomes)

    def live() -> None:
        ours.close()
        with contextlib.suppress(BrokenPipeError):
            _work((case for number, case in enumerate(make()) if number >= skip), theirs, base)
        sys.stdout.flush()
        os._exit(0)

    gc.collect()
    gc.freeze()
    process = context.Process(target=live)  # no daemon: commands have workers of their own
    process.start()
    theirs.close()
    return _Worker(make, outcomes, process, ours, time.monotonic())


def _heard(worker: _Worker) -> str:
    """Take in what a worker told; "done", "died", "hang" or "" if it goes on."""
    try:
        while worker.told.poll():
            outcome = worker.told.recv()
            assert isinstance(outcome, Outcome), outcome
            worker.outcomes.append(outcome)
            worker.heard = time.monotonic()
    except (EOFError, OSError):
        worker.process.join()
        worker.told.close()
        return "done" if worker.process.exitcode == 0 else "died"
    if time.monotonic() - worker.heard < 4 * SECONDS + GRACE_S:
        return ""
    worker.process.kill()
    worker.process.join()
    worker.told.close()
    return "hang"


def outcome_of(case: Case) -> Outcome:
    """What comes of one case, in a process of its own."""
    ((_, (outcome, *_)),) = run_blocks([lambda: iter([case])])
    return outcome
