"""Commands that are killed, starved and disturbed while they write, each in a fork of one warm process."""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from simcore.errors import InputError
from tests.chaos.commands import COMMANDS, Command, write_inputs
from tests.chaos.system import children, copied, disk_bytes, forked, small_disk

_LOG = "log"
_MODULES = "modules"
_LONGEST_S = 60.0
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER: what a killed command leaves is ours to wait for
OUTCOMES = ("absent", "old", "whole", "broken")


@dataclass
class Found:
    """How often what was found, by (command, what was done to it); ``wrong`` says what should not be."""

    counts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


class Chaos:
    """Cases of one ``seed``; the folders of those that went wrong are kept below ``keep``."""

    def __init__(
        self, folder: Path, seed: int, keep: Path | None = None, commands: Sequence[Command] = COMMANDS
    ) -> None:
        self._folder, self._keep = folder, keep
        self._random = random.Random(seed)
        self._inputs = folder / "inputs"
        self._truth: dict[tuple[str, str], frozenset[str]] = {}
        self._lasts_s: dict[str, float] = {}
        self._cases = 0
        self.found = Found()
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
        self._inputs.mkdir()
        self._child(lambda: write_inputs(self._inputs))
        self._commands = commands
        for command in commands:
            self._make(command, "old")
            _import((folder / _MODULES).read_text().split())
            self._make(command, "new")
            if command.name == "run":  # what is reported
                shutil.copytree(folder / "run-new" / command.target, self._inputs / command.target)

    def kill(self) -> None:
        """Kill a command (-9) at a random moment, every second time once it has begun to write."""
        command = self._chosen()
        with self._case(command, "kill -9") as case:
            lasts_s = self._lasts_s[command.name]
            before = _state(case)
            process = self._start(command, "new", case)
            if self._random.random() < 0.5:
                time.sleep(self._random.uniform(0, 1.05 * lasts_s))
            else:
                until = time.monotonic() + lasts_s
                while _state(case) == before and time.monotonic() < until:
                    time.sleep(0.0002)
                time.sleep(self._random.uniform(0, 0.3 * lasts_s))
            os.kill(process, signal.SIGKILL)
            self._finish(process)

    def full_disk(self) -> None:
        """Let the disk, or a file of it, be full at a random size."""
        command = self._chosen(lambda one: one.name != "trace")
        with self._case(command, "full disk") as case:
            made = self._folder / f"{command.name}-new"
            held, more = disk_bytes(case), disk_bytes(made)
            room = held + self._random.randrange(8192, max(2 * more, 8193))
            with small_disk(case, room) as mounted:
                limit = 0 if mounted else self._random.randrange(1, 20_000)
                code = self._finish(
                    self._start(command, "new", case, file_bytes=limit, log=self._folder / _LOG)
                )
                self._expect(command, case, code, "full disk")

    def read_only(self) -> None:
        """Write where nothing can be written."""
        command = self._chosen(lambda one: one.name != "trace")
        with self._case(command, "read-only") as case, small_disk(case, 64 << 20, read_only=True) as mounted:
            if not mounted and os.geteuid() == 0:
                return  # root writes wherever a disk is not mounted so
            code = self._finish(self._start(command, "new", case, log=self._folder / _LOG))
            if code != 2:
                self._tell(f"{command.name}, read-only: exit code {code}")

    def two_writers(self) -> None:
        """Let two processes write to one place."""
        command = self._chosen(lambda one: one.name != "trace")
        with self._case(command, "two writers") as case:
            first = self._start(command, "new", case)
            time.sleep(self._random.uniform(0, 0.5 * self._lasts_s[command.name]))
            second = self._start(command, "new", case, log=self._folder / _LOG)
            for process in (first, second):
                if code := self._finish(process):
                    self._tell(f"{command.name}, two writers: exit code {code}")

    def clock_jumps(self) -> None:
        """Let the clock jump by days, forwards and backwards, while a command writes."""
        command = self._chosen(lambda one: one.name != "trace")
        with self._case(command, "clock jumps") as case:
            jumps = random.Random(self._random.random())

            def jump() -> None:
                plain = time.time
                time.time = lambda: plain() + jumps.uniform(-1e7, 1e7)

            if code := self._finish(self._start(command, "new", case, first=jump)):
                self._tell(f"{command.name}, clock jumps: exit code {code}")

    def killed_worker(self) -> None:
        """Kill a worker process of a command that has some."""
        command = self._chosen(lambda one: one.workers)
        with self._case(command, "killed worker") as case:
            process = self._start(command, "new", case)
            until = time.monotonic() + self._lasts_s[command.name]
            while not (workers := children(process)) and time.monotonic() < until:
                time.sleep(0.001)
            time.sleep(self._random.uniform(0, 0.1 * self._lasts_s[command.name]))
            if workers:
                with suppress(ProcessLookupError):
                    os.kill(self._random.choice(workers), signal.SIGKILL)
            if code := self._finish(process):
                self._tell(f"{command.name}, killed worker: exit code {code}")

    @property
    def faults(self) -> tuple[Callable[[], None], ...]:
        """Everything that is done beside kills."""
        return self.full_disk, self.read_only, self.two_writers, self.clock_jumps, self.killed_worker

    def _make(self, command: Command, which: str) -> None:
        """What a command makes when nobody disturbs it, and how long that lasts."""
        made = self._folder / f"{command.name}-{which}"
        made.mkdir()
        began = time.monotonic()
        code = self._finish(self._start(command, which, made))
        self._lasts_s[command.name] = time.monotonic() - began
        if code:
            raise InputError(f"{command.name}: {(made / _LOG).read_text()[-500:]}")
        self._truth[command.name, which] = self._parts(command, made)

    def _chosen(self, suits: Callable[[Command], bool] = lambda _: True) -> Command:
        fit = [command for command in self._commands if suits(command)]
        return self._random.choices(fit, [command.share for command in fit])[0]

    @contextmanager
    def _case(self, command: Command, fault: str) -> Iterator[Path]:
        """A folder in which the command's old output is, or nothing; afterwards all is as promised there."""
        self._cases += 1
        case = self._folder / f"case{self._cases}"
        case.mkdir()
        before = "absent" if self._random.random() < 0.5 else "old"
        if before == "old":
            copied(self._folder / f"{command.name}-old" / command.target, case / command.target)
        errors = len(self.found.wrong)
        yield case
        outcome, why = self._look(command, case)
        if outcome == "broken" or (outcome == "absent" and before == "old"):
            self._tell(f"{command.name}, {fault}: {outcome} where {before} was: {why}")
            outcome = "broken"
        self.found.counts[command.name, fault, outcome] += 1
        code = self._finish(self._start(command, "new", case))
        outcome, why = self._look(command, case)
        if code or outcome != "whole":
            self._tell(f"{command.name}, {fault}: the next run ends with {code} and leaves {outcome}: {why}")
        left = sorted({path.name for path in case.iterdir()} - {command.target, _LOG})
        if left:
            self._tell(f"{command.name}, {fault}: the next run leaves {', '.join(left)}")
        if len(self.found.wrong) > errors and self._keep is not None:
            copied(case, self._keep / case.name)
        shutil.rmtree(case)

    def _expect(self, command: Command, case: Path, code: int, fault: str) -> None:
        """A command that could not write has said so, and nothing of it is left."""
        outcome, why = self._look(command, case)
        if code not in (0, 2) or (code == 0) != (outcome == "whole"):
            said = (self._folder / _LOG).read_text(errors="replace")[-300:]
            self._tell(f"{command.name}, {fault}: exit code {code}, {outcome} {why}: {said}")
        left = sorted({path.name for path in case.iterdir()} - {command.target, _LOG})
        if left:
            self._tell(f"{command.name}, {fault}: {', '.join(left)} is left")

    def _look(self, command: Command, case: Path) -> tuple[str, str]:
        """What is at the place of a command's output, and why it is broken if it is."""
        if not os.path.lexists(case / command.target):
            return "absent", ""
        try:
            parts = self._parts(command, case)
        except InputError as error:
            return "broken", str(error)
        old, new = (self._truth[command.name, which] for which in ("old", "new"))
        if parts == new:
            return "whole", ""
        if parts == old or (command.grows and parts < new):
            return "old", ""
        return "broken", "neither the old nor the new"

    def _parts(self, command: Command, case: Path) -> frozenset[str]:
        """As the command says, found in a process of its own: Parquet's threads are not to be forked."""
        answer = Path(tempfile.mkstemp(dir=self._folder)[1])

        def look() -> None:
            try:
                found = {"parts": sorted(command.parts(case / command.target))}
            except InputError as error:
                found = {"error": [str(error)]}
            answer.write_text(json.dumps(found))

        self._child(look)
        found = json.loads(answer.read_text())
        answer.unlink()
        if "error" in found:
            raise InputError(found["error"][0])
        return frozenset(found["parts"])

    def _start(
        self,
        command: Command,
        which: str,
        case: Path,
        *,
        file_bytes: int = 0,
        first: Callable[[], None] | None = None,
        log: Path | None = None,
    ) -> int:
        arguments = command.arguments(which).format(self._inputs).split()
        said = os.open(log or case / _LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

        def run() -> None:
            os.setsid()
            os.dup2(said, 1)
            os.dup2(said, 2)
            os.chdir(case)
            if file_bytes:
                resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
            if first is not None:
                first()
            from simcore.apps.main import app

            try:
                app(arguments, prog_name="simcore")
            finally:
                if not self._cases:
                    (self._folder / _MODULES).write_text(" ".join(sys.modules))

        process = forked(run)
        os.close(said)
        return process

    def _child(self, function: Callable[[], None]) -> None:
        if self._finish(forked(function)):
            raise RuntimeError("the child of a check has failed")

    def _finish(self, process: int) -> int:
        """The exit code of a process; nobody of its group stays."""
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        until = time.monotonic() + _LONGEST_S
        with suppress(ChildProcessError):
            while time.monotonic() < until:
                if os.waitpid(-process, os.WNOHANG) == (0, 0):
                    time.sleep(0.002)
            os.killpg(process, signal.SIGKILL)
            self._tell(f"processes stay behind for {_LONGEST_S:.0f} s")
        return code

    def _tell(self, text: str) -> None:
        self.found.wrong.append(f"case {self._cases}: {text}")


def _state(case: Path) -> frozenset[tuple[str, int, int]]:
    """Names in a folder, with what changes when they are written; not what the command says."""
    with os.scandir(case) as found:
        return frozenset((one.name, one.inode(), one.stat().st_size) for one in found if one.name != _LOG)


def _import(names: Iterable[str]) -> None:
    """What commands have imported, so that their forks need not."""
    for name in names:
        if not name.startswith("__"):
            with suppress(ImportError):
                importlib.import_module(name)
    gc.collect()
    gc.freeze()  # forks share what is never looked through


def table(counts: Mapping[tuple[str, str, str], int]) -> str:
    """Counts by command and what was done, 80 columns."""
    lines = [f"{'command':<15}{'what was done':<17}{'cases':>8}" + "".join(f"{one:>10}" for one in OUTCOMES)]
    for command, fault in sorted({key[:2] for key in counts}, key=lambda key: (key[1] != "kill -9", key)):
        found = [counts.get((command, fault, one), 0) for one in OUTCOMES]
        lines.append(f"{command:<15}{fault:<17}{sum(found):>8,}" + "".join(f"{one:>10,}" for one in found))
    return "\n".join(lines)
