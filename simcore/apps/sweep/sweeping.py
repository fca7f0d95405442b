"""A sweep at work: what is known is taken, the rest simulated, whatever becomes of single cases."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import field
from pathlib import Path

from simcore.apps.progress import say
from simcore.apps.run.identity import cluster_of, scenario_key
from simcore.apps.run.outcome import Outcome, failed, not_done, outcome_of
from simcore.apps.run.scenario import Scenario
from simcore.apps.store import Store
from simcore.apps.sweep.spec import Said, SweepSpec
from simcore.apps.workers import Workers
from simcore.errors import InputError, SimcoreError
from simcore.hardware import ClusterSpec
from simcore.records import dataclass

#: Between two lines of progress, where they are not written over each other.
_LINES_S = 10.0


@dataclass(frozen=True)
class SweptCase:
    """A case of a sweep: its ``number``, from 1, what it ``said``, its ``key`` ("" where it is refused).

    ``cluster``: None where it is refused.
    """

    number: int
    said: Said
    key: str
    cluster: ClusterSpec | None = None


@dataclass
class Swept:
    """Cases with their outcomes by number; those that are open have none.

    ``known`` of them were taken from the store, ``simulated`` new.
    """

    cases: list[SweptCase]
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    known: int = 0
    simulated: int = 0
    interrupted: bool = False

    @property
    def best(self) -> SweptCase | None:
        """The case with the most tokens per second and GPU; of jobs without tokens, the shortest step."""
        done = [case for case in self.cases if self.status(case) == "done"]
        return min(done, key=self.order, default=None)

    def status(self, case: SweptCase) -> str:
        """That of its outcome, or "open"."""
        outcome = self.outcomes.get(case.number)
        return "open" if outcome is None else outcome.status

    def order(self, case: SweptCase) -> tuple[float, float, int]:
        """Best first, of cases that are done."""
        outcome = self.outcomes[case.number]
        return -outcome.tokens_per_s_per_gpu, outcome.step_time_s or 0.0, case.number


@dataclass(frozen=True)
class _SimulatingCase:
    """Simulates a case, in a worker: its key as it was asked and as the worker reads it, and the outcome.

    The key is "" where the machine is to blame: what cannot be read or written there.  What it leaves when it
    is killed lies in ``scratch`` where the worker has it, too.
    """

    scratch: Path

    def __call__(self, job: tuple[str, Scenario]) -> tuple[str, str, Outcome]:
        key, scenario = job
        try:
            seen = scenario_key(scenario, anew=True)
            return key, seen, outcome_of(scenario, self.scratch if self.scratch.is_dir() else None)
        except Exception as error:
            return key, "", not_done(error)


def asked(spec: SweepSpec, part: tuple[int, int] = (1, 1)) -> Swept:
    """The cases of a sweep, or of the ``part`` (i of n) of it; those that cannot be are refused already."""
    number, of = part
    found = Swept([])
    for at, said in enumerate(spec.cases(), start=1):
        if at % of != number % of:
            continue
        key, cluster = "", None
        try:
            scenario = spec.scenario(said)
            key, cluster = scenario_key(scenario), cluster_of(scenario)
        except SimcoreError as error:
            found.outcomes[at] = not_done(error)
        except Exception as error:  # one case must not end a sweep of thousands
            found.outcomes[at] = not_done(error)
        found.cases.append(SweptCase(at, said, key, cluster))
    return found


def take(found: Swept, store: Store, *, retry: bool = False) -> None:
    """Take what ``store`` knows; with ``retry`` not what failed."""
    for case in found.cases:
        entry = store.get(case.key) if case.key else None
        outcome = None if entry is None else Outcome.model_validate(entry)
        if outcome is not None and outcome.is_whole and not (retry and outcome.status == "failed"):
            found.outcomes[case.number] = outcome
            found.known += 1


def sweep(spec: SweepSpec, found: Swept, store: Store, workers: Workers, *, limit_s: float) -> None:
    """Have ``workers`` simulate what is open and note it in ``store``; equal cases are simulated once.

    A case whose worker is killed is tried once more when all others are done, alone: it may have been others
    that took the memory.  One that needs more than ``limit_s`` is not.  Ctrl-C leaves what is done.
    Errors: InputError where a worker reads other files than this process did, or a disk is full.
    """
    alike: dict[str, list[SweptCase]] = {}
    for case in found.cases:
        if case.number not in found.outcomes:
            alike.setdefault(case.key, []).append(case)
    progress = _Progress(found)
    again: list[str] = []

    def run(keys: Sequence[str], *, last: bool) -> None:
        def lost(job: tuple[str, Scenario], how: str) -> tuple[str, str, Outcome | None]:
            if how.startswith("after") or last:
                return job[0], job[0], failed(f"ended {how}")
            return job[0], job[0], None

        jobs = ((key, spec.scenario(alike[key][0].said)) for key in keys)
        results = workers.each(
            work, jobs, lambda job: words(alike[job[0]][0].said), lost=lost, limit_s=limit_s, alone=last
        )
        with closing(results):
            for key, seen, outcome in results:
                said = alike[key][0].said
                if outcome is None:
                    again.append(key)
                    continue
                if not seen:
                    raise InputError(f"{words(said)}: {outcome.reason}; ask again to go on")
                if seen != key:
                    raise InputError(
                        f"{words(said)}: a worker reads other files than were asked about: leave them as they"
                        " are, and have the same on all machines"
                    )
                store.put(key, {"case": dict(said), **outcome.model_dump(exclude_none=True)})
                found.outcomes |= {case.number: outcome for case in alike[key]}
                found.simulated += 1
                progress.show()

    try:
        with tempfile.TemporaryDirectory(prefix="stepsim-sweep-") as folder:
            work = _SimulatingCase(Path(folder))
            run(list(alike), last=False)
            run(list(again), last=True)
    except KeyboardInterrupt:
        found.interrupted = True
    progress.end()


class _Progress:
    """How far a sweep is, on stderr: a line written over on a terminal, else one now and then."""

    def __init__(self, found: Swept) -> None:
        self._found = found
        self._began = self._shown = time.monotonic()
        self._over = sys.stderr.isatty()
        self._total = len(found.cases)
        self._before = len(found.outcomes)
        if found.known:
            say(f"{found.known:,} of {self._total:,} cases were simulated before")

    def show(self) -> None:
        """After each case."""
        now = time.monotonic()
        done = len(self._found.outcomes)
        if now - self._shown < (1.0 if self._over else _LINES_S) or done == self._total:
            return
        self._shown = now
        rate = (done - self._before) / (now - self._began)
        left_s = (self._total - done) / rate
        line = f"{done:,} of {self._total:,} cases, {rate:.3g}/s, {_duration(left_s)} left{self._best_of()}"
        if self._over:
            print(f"\r{line[:119]:<119}", end="", file=sys.stderr, flush=True)
        else:
            say(line)

    def end(self) -> None:
        """Leave the line."""
        if self._over and self._shown != self._began:
            print(file=sys.stderr)

    def _best_of(self) -> str:
        best = self._found.best
        if best is None:
            return ""
        return f"; best {self._found.outcomes[best.number].step_time_s:.4g} s a step: {words(best.said)}"


def words(said: Said) -> str:
    """A case as settings, by the last part of a key where no other ends so."""
    last = [key.rpartition(".")[2] for key in said]
    names = [short if last.count(short) == 1 else key for key, short in zip(said, last, strict=True)]
    return " ".join(f"{name}={value}" for name, value in zip(names, said.values(), strict=True))


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
