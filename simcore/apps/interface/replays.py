"""Recordings played back, as Python looks at them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType

from simcore.apps.interface.shown import ShownAsTables
from simcore.records import dataclass

if TYPE_CHECKING:
    import pandas as pd

    from simcore.apps.replay.insight import StepInsight
    from simcore.apps.replay.play import Replay, ReplayedStep
    from simcore.apps.run.edits import EditStep
    from workloads.imports import ImportedJob


@dataclass(frozen=True, repr=False)
class ReplayedRecording(ShownAsTables):
    """A recording played by the engine, perhaps after edits; made by :func:`replay`.

    ``level``, ``cluster``: what is predicted anew and on what, as ``replay.py`` takes them; ``step``: the one
    looked at, None for all.
    """

    recording: ImportedJob
    level: str = "recorded"
    cluster: str | None = None
    step: int | None = None
    asked: tuple[str, ...] = ()

    @cached_property
    def _edited(self) -> tuple[ImportedJob, tuple[EditStep, ...]]:
        from simcore.apps.replay.edits import edit_recording

        return edit_recording(self.recording, self.asked, self.step, self.level, self.cluster)

    @cached_property
    def played(self) -> Replay:
        """What the engine made of it: graph, cluster and times."""
        from simcore.apps.replay.levels import play_level

        return play_level(
            self._edited[0], self.level, None if self.asked and self.level == "recorded" else self.cluster
        )

    @cached_property
    def _steps(self) -> tuple[list[ReplayedStep], list[StepInsight]]:
        from simcore.apps.replay.insight import step_insights

        steps = self.played.steps(self.step)
        return steps, step_insights(self.played, steps)

    @property
    def edits(self) -> tuple[EditStep, ...]:
        """What was changed, with the step time before and after each."""
        return self._edited[1]

    @property
    def steps(self) -> pd.DataFrame:
        """A row for each step and rank: ``recorded_s``, ``predicted_s``, ``error`` and where time goes."""
        import pandas as pd

        rows = []
        for row in self._steps[0]:
            recorded = row.recorded.span or None
            parts = {f"{name}_s": value for name, value in row.replayed.parts().items()}
            rows.append({
                "rank": row.rank, "step": row.step, "recorded_s": recorded, "predicted_s": row.replayed.span,
                "error": row.error if recorded else None, **parts,
            })  # fmt: skip
        return pd.DataFrame(rows)

    @property
    def step_time_s(self) -> float:
        """Mean over the steps of the longest span of any rank, seconds."""
        return float(self.steps.groupby("step").predicted_s.max().mean())

    def edit(self, *edits: str) -> ReplayedRecording:
        """The recording after more edits (``"tp=4:8"``; docs/what-if.md).  InputError where it cannot be."""
        changed = replace(self, asked=(*self.asked, *edits))
        _ = changed.edits  # what cannot be edited is known at once
        return changed

    def as_dict(self) -> dict[str, Any]:
        """What ``replay.py --json`` prints."""
        from simcore.apps.replay.show import replay_object

        found = replay_object(self._edited[0], *self._steps)
        return {**found, "edits": [one.as_object() for one in self.edits]}

    def save(self, folder: Path | str) -> Path:
        """Write a run folder, for ``report.py``, ``compare.py`` and Perfetto."""
        from simcore.apps.replay.show import write_replay

        write_replay(Path(folder), self.played, {"gaps": "recorded", "level": self.level})
        return Path(folder)

    def __rich__(self) -> RenderableType:
        from simcore.apps.replay.show import replay_tables
        from simcore.apps.run.edits import edit_table

        shown: list[RenderableType] = [replay_tables(self.played, *self._steps)]
        return Group(*shown, *([edit_table(self.edits)] if self.edits else []))


def replay(
    traces: str | Path | Sequence[str | Path],
    *,
    level: str = "recorded",
    cluster: str | None = None,
    step: int | None = None,
    gaps: str = "recorded",
    skip_bad: bool = False,
) -> ReplayedRecording:
    """A recording (files or folders) played back, as ``replay.py`` does, which says what it takes.

    Errors: InputError for files that are none or have no recorded step, with the file's name; for typical
    gaps where the recording has none.
    """
    from simcore.apps.replay.play import check_typical_gaps
    from simcore.errors import InputError
    from workloads.imports import import_traces

    files = [traces] if isinstance(traces, str | Path) else list(traces)
    job = import_traces([Path(file) for file in files], skip_bad=skip_bad, gaps=gaps)
    if not job.ranks:
        missing = "; ".join(job.report.missing)
        raise InputError(f"there is no recorded step in what is given: {missing}; replay.py plays it")
    if gaps == "typical":
        check_typical_gaps(job)
    found = ReplayedRecording(job, level, cluster, step)
    found.played.steps(step)
    return found
