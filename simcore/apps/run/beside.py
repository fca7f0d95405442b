"""What is made of a run's tables while its step is analysed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from simcore.analysis import CriticalPath, critical_path
from simcore.clock import give_back_memory
from simcore.records import dataclass
from simcore.report import default_ranks, write_perfetto
from simcore.timeline import Timeline
from simcore.timeline.info import MemoryPeak

PERFETTO_FILE = "perfetto.json.gz"


@dataclass(frozen=True)
class BesideAnalysis:
    """What stages hold at their peaks; the step's critical path; ranks in the file for Perfetto, and in words
    what did not fit there.
    """

    peaks: tuple[MemoryPeak, ...]
    path: CriticalPath | None = None
    ranks: tuple[int, ...] = ()
    left_out: tuple[str, ...] = ()


def beside_analysis(
    timeline: Timeline, curves: Callable[[], tuple[MemoryPeak, ...]], stage_of: dict[int, int],
    *, path: bool, perfetto: bool,
) -> Iterator[BesideAnalysis]:  # fmt: skip
    """Write memory ``curves``, then find the critical path (of a large run: its analysis takes as long as all
    of this), then write the file for Perfetto.  Each time what is known by then.

    ``stage_of``: of each rank that stands for a class.
    """
    peaks = curves()
    yield BesideAnalysis(peaks)
    give_back_memory()
    critical = critical_path(timeline) if path else None
    timeline.let_go()
    give_back_memory()
    yield BesideAnalysis(peaks, critical)
    if not perfetto:
        return
    ranks = default_ranks(timeline, stage_of)
    left_out = write_perfetto(timeline, timeline.run_dir / PERFETTO_FILE, ranks).left_out
    yield BesideAnalysis(peaks, critical, tuple(ranks), left_out)
