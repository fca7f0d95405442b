"""From a simulation to a run folder.  Streams rank by rank: memory is that of one rank's table."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from simcore.engine.result import SimulationResult
from simcore.files import whole_folder
from simcore.graph.graph import Graph
from simcore.memory import ProgramMemory, peak_memory
from simcore.records import dataclass
from simcore.timeline.facts import (
    asked_commit,
    communication_error,
    flop_counts,
    software_versions,
    stage_memory,
)
from simcore.timeline.info import AssumedValue, GroupLayout, NearestRun, RunInfo, StepBand, WorkloadInfo
from simcore.timeline.reader import Timeline
from simcore.timeline.schema import COUNTERS, COUNTERS_FILE, RANK_CLASSES_FILE, RUN, TIMELINE
from simcore.timeline.simulated import SimulatedTables

#: Times grow along a rank's rows, so their differences are small numbers; all else repeats.
_DELTA_COLUMNS = ("op_id", "ready_ps", "start_ps", "end_ps")
_ROW_GROUP_ROWS = 64 * 1024


@dataclass(frozen=True)
class RunFacts:
    """What the writer cannot know from graph and result; plain values, fields as in :class:`RunInfo`.

    ``memory`` is the peak of each program (default: computed), ``capacity_bytes`` what one GPU leaves to it.
    """

    cluster: Mapping[str, Any]
    network: str
    graph_hash: str = ""
    profile_hash: str = ""
    seed: int = 0
    settings: Mapping[str, str] = field(default_factory=dict)
    asked: str = ""
    question: str = ""
    software: Mapping[str, Any] = field(default_factory=dict)
    assumed: tuple[AssumedValue, ...] = ()
    memory: tuple[ProgramMemory, ...] | None = None
    capacity_bytes: int = 0
    peak_flops_per_s: float = 0.0
    peak_math: str = ""
    origins: Mapping[str, float] = field(default_factory=dict)
    band: StepBand | None = None
    nearest: tuple[NearestRun, ...] = ()
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    wall_s: Mapping[str, float] = field(default_factory=dict)


def write_run(out_dir: Path, graph: Graph, result: SimulationResult, facts: RunFacts) -> RunInfo:
    """Write a whole run folder, atomically; returns what ``run.json`` says.

    Errors: InputError when ``out_dir`` holds something that is not a run.
    """
    with whole_folder(out_dir, RUN) as folder:
        return write_tables(folder, graph, result, facts).info


def write_tables(folder: Path, graph: Graph, result: SimulationResult, facts: RunFacts) -> Timeline:
    """Write the files of a run into an existing folder (see :func:`simcore.files.whole_folder`)."""
    with asked_commit() as answer:
        tables = SimulatedTables(folder, graph, result)
        timeline = unwritten(folder, graph, result, facts, tables)
        store(folder, tables)
        known = {"commit": answer(), "digest": timeline.digest()}
        timeline.info = timeline.info.model_copy(update=known)
    timeline.info.write(folder)
    return timeline


def unwritten(
    folder: Path, graph: Graph, result: SimulationResult, facts: RunFacts, tables: SimulatedTables
) -> Timeline:
    """The timeline of a simulation to be written into ``folder``, whose digest is not found yet."""
    return Timeline(folder, _run_info(graph, result, facts), tables)


def store(folder: Path, tables: SimulatedTables) -> None:
    """Write timeline, counters and classes of ranks."""
    _write_timeline(tables)
    pa.default_memory_pool().release_unused()  # what rows were encoded in
    _write_counters(folder / COUNTERS_FILE, tables)
    pq.write_table(
        tables.classes, folder / RANK_CLASSES_FILE,
        compression="zstd", compression_level=1, write_page_checksum=True,
    )  # fmt: skip


def _run_info(graph: Graph, result: SimulationResult, facts: RunFacts) -> RunInfo:
    """What ``run.json`` says, but for the commit and the digest."""
    memory = peak_memory(graph) if facts.memory is None else facts.memory
    return RunInfo(
        versions=software_versions(),
        commit=None,
        graph_hash=facts.graph_hash,
        profile_hash=facts.profile_hash,
        workload=WorkloadInfo(**dataclasses.asdict(graph.workload)),
        groups={name: GroupLayout.of(group) for name, group in graph.groups.items()},
        cluster=dict(facts.cluster),
        settings=dict(facts.settings),
        asked=facts.asked,
        question=facts.question,
        software=dict(facts.software),
        assumed=facts.assumed,
        network=facts.network,
        seed=facts.seed,
        step_ps=result.step_ps,
        engine_events=result.engine_events,
        num_rank_classes=len(result.representatives),
        digest="",
        flops=flop_counts(graph),
        peak_flops_per_s=facts.peak_flops_per_s,
        peak_math=facts.peak_math,
        memory=stage_memory(memory, facts.capacity_bytes),
        origins=dict(facts.origins),
        communication_error=communication_error(result),
        band=facts.band,
        nearest=facts.nearest,
        assumptions=facts.assumptions,
        warnings=(*result.warnings, *facts.warnings),
        wall_s=dict(facts.wall_s),
    )


def _write_timeline(tables: SimulatedTables) -> None:
    """Write the rows of each class's representative."""
    repeating = [name for name in TIMELINE.names if name not in _DELTA_COLUMNS]
    with pq.ParquetWriter(
        tables.path,
        TIMELINE,
        compression="zstd",
        compression_level=1,
        use_dictionary=repeating,
        column_encoding=dict.fromkeys(_DELTA_COLUMNS, "DELTA_BINARY_PACKED"),
        write_statistics=["rank"],
        write_page_checksum=True,
    ) as writer:
        # Whole ranks per row group: one each, or several where a rank is short.
        waiting: list[pa.Table] = []
        for group in range(len(tables.spans)):
            waiting.append(tables.read(group, TIMELINE.names))
            if sum(len(table) for table in waiting) >= _ROW_GROUP_ROWS:
                _write_group(writer, waiting)
        # Programs share dictionaries (those of the op table), so their ranks may share a row group.
        _write_group(writer, waiting)


def _write_group(writer: pq.ParquetWriter, waiting: list[pa.Table]) -> None:
    """Write the waiting ranks as one row group and forget them."""
    if not waiting:
        return
    table = waiting[0] if len(waiting) == 1 else pa.concat_tables(waiting).unify_dictionaries()
    writer.write_table(table, row_group_size=max(len(table), 1))
    waiting.clear()


def _write_counters(path: Path, tables: SimulatedTables) -> None:
    with pq.ParquetWriter(
        path,
        COUNTERS,
        compression="zstd",
        compression_level=1,
        use_dictionary=["resource", "value"],
        column_encoding={"time_ps": "DELTA_BINARY_PACKED"},
        write_page_checksum=True,
    ) as writer:
        for part in tables.counters():
            writer.write_table(part)
