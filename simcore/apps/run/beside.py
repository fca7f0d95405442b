"""What is made of a run's tables while its step is analysed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from simcore.analysis import CriticalPath, critical_path
from simcore.clock import give_back_memory
from simcore.records import dataclass
from simcore.report import default_ranks, write_perfetto
from simcore.timeline import Timeline
from simcore.timeline.info import MemoryPeak
from simcore.timeline.simulated import SimulatedTables
from simcore.timeline.writer import store

PERFETTO_FILE = "perfetto.json.gz"


@dataclass(frozen=True)
class BesideAnalysis:
    """The step's critical path; ranks in the file for Perfetto, and in words what did not fit there."""

    path: CriticalPath | None = None
    ranks: tuple[int, ...] = ()
    left_out: tuple[str, ...] = ()


def stored_tables(
    folder: Path, curves: Callable[[], tuple[MemoryPeak, ...]], tables: SimulatedTables
) -> Iterator[tuple[MemoryPeak, ...]]:
    """Write memory ``curves``, then all other tables; what stages hold at their peaks, each time."""
    peaks = curves()
    yield peaks
    give_back_memory()
    store(folder, tables)
    yield peaks


def beside_analysis(
    timeline: Timeline, stage_of: dict[int, int], curves_written: Callable[[], None],
    *, path: bool, perfetto: bool,
) -> Iterator[BesideAnalysis]:  # fmt: skip
    """Find the critical path (of a large run: its analysis takes as long as all of this), then write the
    file for Perfetto, at its end what stages hold, once ``curves_written`` returns.  Each time what is known.

    ``stage_of``: of each rank that stands for a class.
    """
    critical = critical_path(timeline) if path else None
    timeline.let_go()
    give_back_memory()
    yield BesideAnalysis(critical)
    if not perfetto:
        return
    ranks = default_ranks(timeline, stage_of)
    file = timeline.run_dir / PERFETTO_FILE
    left_out = write_perfetto(timeline, file, ranks, curves_written=curves_written).left_out
    yield BesideAnalysis(critical, tuple(ranks), left_out)
