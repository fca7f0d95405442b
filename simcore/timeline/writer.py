"""From a simulation to a run folder.  Streams rank by rank: memory is that of one rank's table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from simcore.engine.result import SimulationResult, alike
from simcore.files import whole_folder
from simcore.graph.arrow import numbers, texts
from simcore.graph.graph import Graph
from simcore.memory import ProgramMemory, peak_memory
from simcore.records import dataclass
from simcore.timeline.columns import ProgramColumns
from simcore.timeline.digest import rank_digest, timeline_digest
from simcore.timeline.facts import (
    asked_commit,
    communication_error,
    flop_counts,
    software_versions,
    stage_memory,
)
from simcore.timeline.info import AssumedValue, GroupLayout, NearestRun, RunInfo, StepBand, WorkloadInfo
from simcore.timeline.schema import (
    COUNTERS,
    COUNTERS_FILE,
    RANK_CLASSES,
    RANK_CLASSES_FILE,
    RUN,
    TIMELINE,
    TIMELINE_FILE,
)

#: Times grow along a rank's rows, so their differences are small numbers; all else repeats.
_DELTA_COLUMNS = ("op_id", "ready_ps", "start_ps", "end_ps")
_ROW_GROUP_ROWS = 64 * 1024
_COUNTER_ROWS = 256 * 1024  # by row group, which is encoded as a whole


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
        return write_tables(folder, graph, result, facts)


def write_tables(
    folder: Path, graph: Graph, result: SimulationResult, facts: RunFacts | Callable[[], RunFacts]
) -> RunInfo:
    """Write the files of a run into an existing folder (see :func:`simcore.files.whole_folder`).

    What gives ``facts`` is called when the tables stand.  Ranks that were simulated one by one and did the
    same at the same times share rows, as those do of which one was simulated.
    """
    num_simulated = len(result.representatives)
    result = result.told_once(graph)
    with asked_commit() as answer:
        digest = _write_timeline(folder / TIMELINE_FILE, graph, result)
        pa.default_memory_pool().release_unused()  # what rows were encoded in
        _write_counters(folder / COUNTERS_FILE, result)
        _write_rank_classes(folder / RANK_CLASSES_FILE, result)
        if not isinstance(facts, RunFacts):
            facts = facts()
        commit = answer()
    memory = peak_memory(graph) if facts.memory is None else facts.memory
    info = RunInfo(
        versions=software_versions(),
        commit=commit,
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
        num_rank_classes=num_simulated,
        digest=digest,
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
    info.write(folder)
    return info


def _write_timeline(path: Path, graph: Graph, result: SimulationResult) -> str:
    """Write the rows of each class's representative and return the digest of all ranks' times."""
    digests: list[tuple[int, bytes]] = []
    repeating = [name for name in TIMELINE.names if name not in _DELTA_COLUMNS]
    with pq.ParquetWriter(
        path,
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
        gathered: dict[tuple[int, int, int], ProgramColumns] = {}
        members = _members(result)
        representatives = result.representatives.tolist()
        ran = [
            (int(graph.program_of_rank[rank]), alike(result.alone_ps, c), alike(result.plan_of, c))
            for c, rank in enumerate(representatives)
        ]
        last = {key: rank_class for rank_class, key in enumerate(ran)}
        for rank_class, (rank, key) in enumerate(zip(representatives, ran, strict=True)):
            columns = gathered.get(key)
            if columns is None:
                columns = gathered[key] = ProgramColumns.gather(graph, result, rank_class)
            times = result.times[rank_class]
            waiting.append(columns.table(graph, rank, rank_class, times))
            digest = rank_digest(
                columns.op_id, times.ready_ps, times.start_ps, times.end_ps, columns.alone_ps
            )
            digests += [(member, digest) for member in members[rank_class].tolist()]
            if last[key] == rank_class:
                del gathered[key]
            if sum(len(table) for table in waiting) >= _ROW_GROUP_ROWS:
                _write_group(writer, waiting)
        # Programs share dictionaries (those of the op table), so their ranks may share a row group.
        _write_group(writer, waiting)
    return timeline_digest(digests)


def _members(result: SimulationResult) -> list[npt.NDArray[np.int64]]:
    """Ranks of each class, ascending."""
    order = np.argsort(result.class_of, kind="stable")
    bounds = np.searchsorted(result.class_of[order], np.arange(1, len(result.representatives)))
    return np.split(order, bounds)


def _write_group(writer: pq.ParquetWriter, waiting: list[pa.Table]) -> None:
    """Write the waiting ranks as one row group and forget them."""
    if not waiting:
        return
    table = waiting[0] if len(waiting) == 1 else pa.concat_tables(waiting).unify_dictionaries()
    writer.write_table(table, row_group_size=max(len(table), 1))
    waiting.clear()


def _write_counters(path: Path, result: SimulationResult) -> None:
    # Most of a large cluster's half a million links are those of ranks that others stand for: not named.
    used = np.zeros(len(result.resources), dtype=np.bool_)
    used[result.counters.resource] = True
    names = texts([result.resources[link] for link in np.flatnonzero(used).tolist()])
    code_of = (np.cumsum(used) - 1).astype(np.int32)
    counters = result.counters
    with pq.ParquetWriter(
        path,
        COUNTERS,
        compression="zstd",
        compression_level=1,
        use_dictionary=["resource", "value"],
        column_encoding={"time_ps": "DELTA_BINARY_PACKED"},
        write_page_checksum=True,
    ) as writer:
        for first in range(0, max(len(counters.time_ps), 1), _COUNTER_ROWS):
            part = slice(first, first + _COUNTER_ROWS)
            codes = numbers(code_of[counters.resource[part]])
            columns = [
                numbers(counters.time_ps[part]),
                pa.DictionaryArray.from_arrays(codes, names),
                numbers(counters.value[part]),
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=COUNTERS))


def _write_rank_classes(path: Path, result: SimulationResult) -> None:
    columns = (np.arange(len(result.class_of)), result.class_of, result.representatives[result.class_of])
    arrays = [numbers(column.astype(np.int32)) for column in columns]
    table = pa.Table.from_arrays(arrays, schema=RANK_CLASSES)
    pq.write_table(table, path, compression="zstd", compression_level=1, write_page_checksum=True)
