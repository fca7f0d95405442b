"""Both kinds of tables: peaks of single ranks in bytes, and published runs with memory in GiB.

What is predicted is what ``run_sim.py --memory-only`` says: stages played on the caching allocator, and the
verdict of :mod:`simcore.apps.run.fitting`.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

from simcore.apps.run.fitting import outside_of, played, verdict_of
from simcore.apps.validate.memory.found import MemoryRow, MemoryTable
from simcore.errors import InputError
from simcore.hardware import ClusterSpec, load_cluster, named_board
from simcore.memory import MemoryVerdict
from simcore.memory.played import PlayedStage
from simcore.outside import read_text
from simcore.units import GIB
from workloads.jobs.launch.peaks import PeakJob, PeakRow, peak_jobs, read_peak_rows
from workloads.jobs.published import Case, RunRow, describe, read_run_rows
from workloads.jobs.published.cluster import large_enough
from workloads.parallel.job import Job
from workloads.parallel.played import played_stages

#: Stages that were played, by what decides on their memory.
_Known = dict[Hashable, list[PlayedStage]]
_KNOWN_JOBS: Final = 24

#: A column that only tables of ranks' peaks have.
_PEAKS: Final = "max_allocated_bytes"
#: What notes of a published run say whose memory is the first rank's, as its allocator counts it.
_OF_FIRST_RANK: Final = "peak allocated of rank 0"


def memory_errors(path: str) -> MemoryTable:
    """Every row of ``path``: predicted, measured, and whether it is said to fit the GPU that it ran on.

    Errors: InputError for a bad file, or one without memory.
    """
    head = read_text(Path(path), "measured memory").partition("\n")[0]
    known: _Known = {}
    if _PEAKS in head.split(","):
        return MemoryTable([_peak(row, known) for row in read_peak_rows(path)])
    found = [_run(row, known) for row in read_run_rows(path)]
    if not any(row.measured_bytes or row.fits is not None for row in found):
        raise InputError(f"{path}: no row says on which GPU it ran, or what memory it took")
    return MemoryTable(found)


def _peak(row: PeakRow, known: _Known) -> MemoryRow:
    """One rank's peak; jobs that several rows ran are played once."""
    measured = MemoryRow(
        row.id, row.family, row.quality, measured_bytes=row.measured("allocated"),
        measured_reserved_bytes=row.measured("reserved") or None,
    )  # fmt: skip
    found: list[tuple[PeakJob, PlayedStage]] = []
    reason = ""
    try:
        for one in peak_jobs(row):
            try:
                found.append((one, _stage_of(one, known)))
            except InputError as error:  # of several numbers of GPUs one that cannot be
                reason = str(error)
    except InputError as error:
        reason = str(error)
    if not found:
        return replace(measured, skipped_reason=reason.removeprefix(f"{row.id}: "))
    aim = measured.measured_bytes or 0
    values = [stage.memory.peak_allocated for _, stage in found]
    nearest = min((stage for _, stage in found), key=lambda stage: abs(stage.memory.peak_allocated - aim))
    told = [_verdict(row, stage, one) for one, stage in found]
    said = max((one for one in told if one is not None), key=lambda one: one.chance, default=None)
    return replace(
        measured, predicted_bytes=min(max(aim, min(values)), max(values)),
        low_bytes=min(values), high_bytes=max(values), verdict=said,
        predicted_reserved_bytes=nearest.memory.peak_reserved, parts_bytes=nearest.by_category,
    )  # fmt: skip


def _stage_of(one: PeakJob, known: _Known) -> PlayedStage:
    job = _nameless(Job.of(one.job))
    key = job, one.stage
    if key not in known:
        _remember(known, key, played_stages(job, only=one.stage))
    return known[key][0]


def _remember(known: _Known, key: Hashable, stages: list[PlayedStage]) -> None:
    """Rows alike stand together: of a table of hundreds the latest jobs are kept, each some tens of MB."""
    if len(known) >= _KNOWN_JOBS:
        del known[next(iter(known))]
    known[key] = stages


def _nameless(job: Job) -> Job:
    return replace(job, model=job.model.model_copy(update={"name": ""}))


def _verdict(row: PeakRow, stage: PlayedStage, one: PeakJob) -> MemoryVerdict | None:
    """What is said of the job on the board that the row names; None for one that is not known."""
    board = named_board(row.row.text("gpu"))
    if board is None or not board.cluster:
        return None
    cluster = _cluster(*large_enough(board.cluster, one.job.parallel.world_size))
    return verdict_of(outside_of(cluster, one.job).available_bytes(cluster.gpu), [stage])


def _run(row: RunRow, known: _Known) -> MemoryRow:
    """A published run: what it took where the table says so, and whether it is said to fit.

    Tables of torchtitan give what the caching allocator held; others what the whole GPU did, context and
    communicators included (inferred: chronicles quote the driver's figure), unless the row says that it is
    the peak allocated of rank 0.
    """
    found = MemoryRow(row.id, row.family, row.text("quality").upper())
    try:
        if row.text("mem_gib"):
            found = replace(found, measured_bytes=_measured(row))
        band = describe(row)
        stages = [_stages_of(case, known) for case in band.cases]
        rooms = [_available(case) for case in band.cases]
    except InputError as error:
        return replace(found, skipped_reason=str(error).removeprefix(f"{row.id}: "))
    said = [verdict_of(room, own) for room, own in zip(rooms, stages, strict=True)]
    whole_gpu = not band.preset.startswith("torchtitan")
    found = replace(
        found, what="whole GPU" if whole_gpu else "reserved", verdict=max(said, key=lambda one: one.chance)
    )
    measured = found.measured_bytes
    if measured is None:
        return found
    if _OF_FIRST_RANK in row.text("notes"):
        firsts = [_first_stage(case) for case in band.cases]
        sizes = [one.memory.peak_allocated for one in firsts]
        nearest = min(range(len(sizes)), key=lambda k: abs(sizes[k] - measured))
        return replace(
            found, what="allocated", predicted_bytes=min(max(measured, min(sizes)), max(sizes)),
            low_bytes=min(sizes), high_bytes=max(sizes), parts_bytes=firsts[nearest].by_category,
        )  # fmt: skip
    fullest = [max(own, key=lambda one: one.memory.peak_reserved) for own in stages]
    held = [
        one.memory.peak_reserved + (_outside(case) if whole_gpu else 0)
        for case, one in zip(band.cases, fullest, strict=True)
    ]
    nearest = min(range(len(held)), key=lambda k: abs(held[k] - measured))
    low, high = min(held), max(held)
    return replace(
        found, predicted_bytes=min(max(measured, low), high), low_bytes=low, high_bytes=high,
        parts_bytes=fullest[nearest].by_category,
    )  # fmt: skip


def _measured(row: RunRow) -> int:
    found = int(row.number("mem_gib") * GIB)
    if found <= 0:
        raise InputError(f"mem_gib = {row.text('mem_gib')!r} is no positive number")
    return found


def _stages_of(case: Case, known: _Known) -> list[PlayedStage]:
    job = _nameless(Job.of(case))
    if job not in known:
        _remember(known, job, played(job))
    return known[job]


def _first_stage(case: Case) -> PlayedStage:
    return played_stages(Job.of(case), only=0)[0]


def _available(case: Case) -> int:
    cluster = _cluster(case.cluster, case.overrides)
    return outside_of(cluster, case).available_bytes(cluster.gpu)


def _outside(case: Case) -> int:
    return outside_of(_cluster(case.cluster, case.overrides), case).total


@cache
def _cluster(name: str, overrides: tuple[tuple[str, str], ...]) -> ClusterSpec:
    return load_cluster(name, overrides)
