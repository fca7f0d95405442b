"""A measured run beside the expected one, as Python looks at it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

from simcore.apps.interface.jobs import JobOnCluster, load
from simcore.apps.interface.shown import ShownAsTables
from simcore.records import dataclass

if TYPE_CHECKING:
    import pandas as pd

    from simcore.apps.diagnose.answer import Diagnosis
    from simcore.timeline.info import StepBand


@dataclass(frozen=True, repr=False)
class DiagnosedRun(ShownAsTables):
    """Whether a measured run is as fast as expected, and why not; made by :func:`diagnose`.

    ``found`` is what ``diagnose.py`` prints, ``job`` the one that is taken to have run.
    """

    found: Diagnosis
    job: JobOnCluster

    @property
    def verdict(self) -> str:
        """Where the measured step lies, seen from the band: "inside", "slower" or "faster"."""
        return self.found.verdict

    @property
    def measured_s(self) -> float:
        """Seconds of a measured step: the median of a log's, the mean of a recording's."""
        return self.found.measured.step_s

    @property
    def expected_s(self) -> float:
        """Seconds of the simulated step."""
        return self.found.expected_s

    @property
    def gap_s(self) -> float:
        """Measured minus expected."""
        return self.found.gap_s

    @property
    def band(self) -> StepBand | None:
        """The expected step lies between ``low_s`` and ``high_s`` with the probability ``level``."""
        return self.found.info.band

    @property
    def causes(self) -> pd.DataFrame:
        """Of recordings: a row for each cause; ``extra_s`` adds up to ``gap_s``."""
        return _rows(self.found.causes, ("name", "extra_s", "seen"))

    @property
    def checks(self) -> pd.DataFrame:
        """What to check, by what it would gain at most; ``certain``: simulated, or in the log."""
        return _rows(self.found.checks, ("name", "gain_s", "advice", "certain"))

    @property
    def doubts(self) -> tuple[str, ...]:
        """Where what was measured and the job do not agree, a line each."""
        return self.found.measured.doubts

    def as_dict(self) -> dict[str, Any]:
        """What ``diagnose.py --json`` prints."""
        from simcore.apps.diagnose.show import diagnosis_object

        return diagnosis_object(self.found)

    def __rich__(self) -> RenderableType:
        from simcore.apps.diagnose.show import diagnosis_lines

        return Text("\n".join(diagnosis_lines(self.found)))


def diagnose(
    files: str | Path | Sequence[str | Path],
    job: JobOnCluster | str | None = None,
    *,
    cluster: str | None = None,
    settings: Mapping[str, Any] | None = None,
    step: int | None = None,
    checks: bool = True,
    progress: bool = False,
) -> DiagnosedRun:
    """Why a run is slower than it should be, from a training log or recordings of its ranks.

    ``job`` is what ran, or what ``load`` makes a job of; where it is None the log's own launch is taken.
    ``cluster`` and ``settings`` change it; ``step``: of recordings only this one; ``checks``: simulate what
    may explain the gap, which takes longest; ``progress``: say on stderr how far it is.

    Errors: InputError for files that are neither, that are of another job, or that do not say which.
    """
    from simcore.apps.diagnose.answer import diagnosed
    from simcore.apps.diagnose.measured import launch_of_log, logs_of
    from simcore.apps.progress import StageTimer

    paths = [Path(file) for file in ([files] if isinstance(files, str | Path) else files)]
    log = logs_of(paths)
    if job is None:
        framework, told = launch_of_log(log)
        asked = load(cluster=cluster, settings=settings, **{framework: told})  # type: ignore[arg-type]
    elif isinstance(job, str):
        asked = load(job, cluster=cluster, settings=settings)
    else:
        asked = job.changed(cluster=cluster, settings=settings)
    found = diagnosed(paths, log, asked.scenario, StageTimer(shown=progress), step=step, with_checks=checks)
    return DiagnosedRun(found, asked)


def _rows(found: Sequence[Any], columns: Sequence[str]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame([dataclasses.asdict(one) for one in found], columns=list(columns))
