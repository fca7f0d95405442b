"""Simulated steps, as Python looks at them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType

from simcore.analysis import StepAnalysis, analyse
from simcore.apps.interface.jobs import JobOnCluster, load
from simcore.apps.interface.shown import ShownAsTables
from simcore.errors import InputError
from simcore.records import dataclass
from simcore.report import json_object, summary
from simcore.timeline import RunInfo, Timeline
from simcore.timeline.info import NearestRun, StepBand

if TYPE_CHECKING:
    import pandas as pd

    from simcore.analysis.critical_path import CriticalPath
    from simcore.apps.prices import RunCost
    from simcore.apps.run.edits import EditStep
    from simcore.rules import Matched, Rule


@dataclass(frozen=True, repr=False)
class SimulatedRun(ShownAsTables):
    """A simulated step: ``timeline`` is its folder, ``info`` its ``run.json``, ``analysis`` its meaning.

    ``edits``: what was changed, with the step time before and after each; ``rules``: what each of the user's
    own matched.  Numbers are those of
    ``run_sim.py --json``.
    """

    timeline: Timeline
    info: RunInfo
    analysis: StepAnalysis
    edits: tuple[EditStep, ...] = ()
    rules: tuple[tuple[Rule, tuple[Matched, ...]], ...] = ()
    kept: Any = None  # a temporary folder, which goes with the last that needs it

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.timeline.run_dir

    @property
    def step_time_s(self) -> float:
        """Seconds of one optimizer step."""
        return self.analysis.step_s

    @property
    def band(self) -> StepBand | None:
        """The step lies between ``low_s`` and ``high_s`` with the probability ``level``."""
        return self.info.band

    @property
    def nearest(self) -> tuple[NearestRun, ...]:
        """The measured runs most like this one, with what they were predicted to take."""
        return tuple(self.info.nearest)

    @property
    def mfu(self) -> float | None:
        """Model flops per second as a share of the GPUs' peak, causal attention counted once."""
        return self.analysis.throughput.mfu

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second of the whole job."""
        return self.analysis.throughput.tokens_per_s

    @property
    def breakdown_s(self) -> Mapping[str, float]:
        """Where the step's seconds go, mean of all ranks: compute, communication, both at once, idle."""
        return self.analysis.breakdown_s()

    @property
    def memory(self) -> pd.DataFrame:
        """Peak bytes per GPU of each program's ranks: one row a stage, by category, and the ``capacity``."""
        import pandas as pd

        return pd.DataFrame([row.model_dump() for row in self.info.memory])

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What was taken for granted, a line each."""
        return tuple(self.info.assumptions)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What limits trust in the answer, a line each."""
        return tuple(self.info.warnings)

    @property
    def critical_path(self) -> CriticalPath:
        """The ops that the step time consists of."""
        from simcore.analysis import critical_path

        return critical_path(self.timeline)

    def cost(self, amount: float, prices: str | None = None) -> RunCost:
        """What ``amount`` tokens, or samples of a model that counts those, take in GPU-hours.

        ``prices``: a TOML file, or a list that comes along ("aws", "azure", "gcp"): also their cost.
        InputError for prices without this run's GPU.
        """
        from simcore.apps.amounts import Amount
        from simcore.apps.prices import cost_of_run

        counted = Amount(amount, self.info.workload.counted)
        return cost_of_run(self.info, self.analysis.throughput.tokens_per_s, counted, prices)

    def as_dict(self) -> dict[str, Any]:
        """What ``run_sim.py --json`` prints."""
        shown = json_object(self.info, self.analysis, self.timeline.path, sum(self.info.wall_s.values()))
        if self.rules:
            from simcore.apps.run.ruled import rules_object

            shown["rules"] = rules_object(self.rules)
        return {**shown, "edits": [one.as_object() for one in self.edits]} if self.edits else shown

    def report(self, file: Path | str) -> Path:
        """Write ``report.html`` of the run, one file that needs no network (docs/report.md)."""
        from simcore.report.page import write_page

        write_page(self.timeline, self.analysis, Path(file))
        return Path(file)

    def save(self, folder: Path | str, *, force: bool = False) -> Path:
        """Copy the run folder, for ``report.py`` and ``compare.py``.

        InputError where it cannot be, or where the folder answers another question (``force`` replaces it).
        """
        from simcore.apps.run.question import RunQuestion, run_folder

        with run_folder(Path(folder), RunQuestion(self.info.asked, self.info.question), force=force) as fresh:
            for path in self.folder.iterdir():
                if path.is_file() and not (fresh / path.name).exists():
                    shutil.copy2(path, fresh / path.name)
        return Path(folder)

    def __rich__(self) -> RenderableType:
        return summary(self.info, self.analysis)


def simulate(
    job: JobOnCluster | str,
    *,
    edits: Sequence[str] | str = (),
    rules: Any = (),
    out: Path | str | None = None,
    interference: str = "shared",
    fold: bool = True,
    progress: bool = False,
) -> SimulatedRun:
    """One optimizer step of ``job`` (or of what ``load`` makes of a name), simulated as ``run_sim.py`` does.

    ``edits``: what to change first (``"tp=8"``; docs/what-if.md).  ``rules``: files of rules, or rules, for
    what the program does not know of a framework (docs/rules.md).  ``out``: the run folder (default: a
    temporary one that goes with the result).  ``interference``: "shared", or "learned" for the alternative of
    docs/contention.md.  ``fold=False`` plays every rank by itself, with the same result.  ``progress``: say
    on stderr how far it is.

    Errors: InputError for what does not fit together, OutOfMemoryError when a stage does not fit its GPUs,
    DeadlockError when the workload hangs.
    """
    from simcore.apps.progress import StageTimer
    from simcore.apps.run.loading import chosen_interference
    from simcore.apps.run.simulation import run_scenario
    from simcore.rules.declared import as_rules

    asked = load(job) if isinstance(job, str) else job
    if not isinstance(asked, JobOnCluster):
        raise InputError(f"simulate: a job of describe, load or trace, or a name, not {job!r:.80}")
    learned = chosen_interference(interference)
    kept = tempfile.TemporaryDirectory(prefix="simcore-run-") if out is None else None
    folder = Path(kept.name) / "run" if kept is not None else Path(str(out))
    done = run_scenario(
        asked.scenario, folder, StageTimer(shown=progress),
        fold=fold, edits=(edits,) if isinstance(edits, str) else edits,
        rules=as_rules(rules) if rules else (), learned=learned,
        perfetto=out is not None, advise=True,
    )  # fmt: skip
    return SimulatedRun(Timeline.open(folder), done.info, done.analysis, done.edits, done.rules, kept)


def open_run(folder: Path | str) -> SimulatedRun:
    """A run folder that a simulation wrote.  InputError where there is none, or a damaged one."""
    timeline = Timeline.open(Path(folder))
    return SimulatedRun(timeline, timeline.info, analyse(timeline))
