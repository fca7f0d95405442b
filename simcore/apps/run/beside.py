"""What is made of a run's tables while its step is analysed."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING

from simcore.analysis import CriticalPath, critical_path
from simcore.apps.run.memory_curves import MemoryCurves, StepInstances
from simcore.clock import give_back_memory
from simcore.files import sync
from simcore.graph import Graph
from simcore.memory import MemoryVerdict, ProgramMemory
from simcore.records import dataclass
from simcore.report import default_ranks, write_perfetto
from simcore.timeline import Timeline
from simcore.timeline.info import MemoryPeak
from simcore.timeline.schema import COUNTERS_FILE, MEMORY_FILE, RANK_CLASSES_FILE, TIMELINE_FILE
from simcore.timeline.simulated import SimulatedTables
from simcore.timeline.writer import store

if TYPE_CHECKING:
    from workloads.jobs import Description

PERFETTO_FILE = "perfetto.json.gz"


@dataclass(frozen=True)
class MemoryFound:
    """Peaks of programs, whether they fit, and what stages hold at their peaks in the simulated step."""

    peaks: tuple[ProgramMemory, ...]
    fits: MemoryVerdict
    held: tuple[MemoryPeak, ...] = ()


@dataclass(frozen=True)
class BesideAnalysis:
    """Digest of all times; the step's critical path; ranks in the file for Perfetto, and in words what did
    not fit there.
    """

    digest: str
    path: CriticalPath | None = None
    ranks: tuple[int, ...] = ()
    left_out: tuple[str, ...] = ()


def memory_beside(
    fits: Callable[[], tuple[tuple[ProgramMemory, ...], MemoryVerdict]],
    graph: Graph,
    description: Description | None,
) -> Generator[MemoryFound | None, tuple[Path, StepInstances], None]:
    """Whether a job ``fits``, while it is simulated; then, told of its folder and step, its memory curves."""
    found = MemoryFound(*fits())
    yield found
    curves = MemoryCurves(graph, description)
    folder, instances = yield None
    yield MemoryFound(found.peaks, found.fits, curves.write(folder, instances))
    sync(folder / MEMORY_FILE)  # only a fork goes on: its parent need not wait for the disk, then


def stored_tables(folder: Path, tables: SimulatedTables) -> Generator[bool, None, None]:
    """Write all tables but that of memory; whether that is done."""
    store(folder, tables)
    yield True
    for name in (TIMELINE_FILE, COUNTERS_FILE, RANK_CLASSES_FILE):
        sync(folder / name)


def beside_analysis(
    timeline: Timeline, stage_of: dict[int, int], curves_written: Callable[[], None],
    *, path: bool, perfetto: bool,
) -> Generator[BesideAnalysis, None, None]:  # fmt: skip
    """Find the digest, then the critical path if ``path``, then write the file for Perfetto, at its end what
    stages hold, once ``curves_written`` returns.  Each time what is known.

    The critical path of a small run is for whoever analyses it, who has less to do than this.
    ``stage_of``: of each rank that stands for a class.
    """
    digest = timeline.digest()
    timeline.info = timeline.info.model_copy(update={"digest": digest})
    yield BesideAnalysis(digest)
    critical = critical_path(timeline) if path else None
    timeline.let_go()
    give_back_memory()
    yield BesideAnalysis(digest, critical)
    if not perfetto:
        return
    ranks = default_ranks(timeline, stage_of)
    file = timeline.run_dir / PERFETTO_FILE
    left_out = write_perfetto(timeline, file, ranks, curves_written=curves_written).left_out
    yield BesideAnalysis(digest, critical, tuple(ranks), left_out)
