"""What is made of a run's tables while its step is analysed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from simcore.analysis import CriticalPath, critical_path
from simcore.clock import give_back_memory
from simcore.records import dataclass
from simcore.report import default_ranks, write_perfetto
from simcore.timeline import Timeline

PERFETTO_FILE = "perfetto.json.gz"


@dataclass(frozen=True)
class BesideAnalysis:
    """The step's critical path; ranks in the file for Perfetto, and in words what did not fit there."""

    path: CriticalPath | None
    ranks: tuple[int, ...] = ()
    left_out: tuple[str, ...] = ()


def beside_analysis(
    timeline: Timeline, stage_of: dict[int, int], drawn: Callable[[], None], *, path: bool, perfetto: bool
) -> Iterator[BesideAnalysis]:
    """Find the critical path (of a large run: its analysis takes as long as all of this), then write the file
    for Perfetto.  Each time what is known by then.

    ``stage_of``: of each rank that stands for a class; ``drawn`` returns when memory curves are there.
    """
    critical = critical_path(timeline) if path else None
    timeline.let_go()
    give_back_memory()
    yield BesideAnalysis(critical)
    if not perfetto:
        return
    ranks = default_ranks(timeline, stage_of)
    file = timeline.run_dir / PERFETTO_FILE
    left_out = write_perfetto(timeline, file, ranks, before_memory=drawn).left_out
    yield BesideAnalysis(critical, tuple(ranks), left_out)
