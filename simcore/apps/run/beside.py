"""What is made of a run's tables while its step is analysed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from simcore.analysis import CriticalPath, critical_path
from simcore.records import dataclass
from simcore.report import default_ranks, write_perfetto
from simcore.timeline import Timeline

PERFETTO_FILE = "perfetto.json.gz"


@dataclass(frozen=True)
class BesideAnalysis:
    """The step's critical path, ranks in the file for Perfetto, and in words what did not fit there."""

    path: CriticalPath | None = None
    ranks: tuple[int, ...] = ()
    left_out: tuple[str, ...] = ()


def beside_analysis(
    folder: Path, stage_of: Mapping[int, int], *, path: bool, perfetto: bool
) -> BesideAnalysis:
    """Find the critical path (of a large run: its analysis outlasts the file for Perfetto); write that file.

    ``stage_of``: of each rank that stands for a class.
    """
    if not (path or perfetto):
        return BesideAnalysis()
    timeline = Timeline.open(folder, finished=False)
    critical = critical_path(timeline) if path else None
    if not perfetto:
        return BesideAnalysis(critical)
    ranks = default_ranks(timeline, stage_of)
    left_out = write_perfetto(timeline, folder / PERFETTO_FILE, ranks).left_out
    return BesideAnalysis(critical, tuple(ranks), left_out)
