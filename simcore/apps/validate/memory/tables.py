"""Both kinds of tables: peaks of single ranks in bytes, and published runs with memory in GiB."""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

from simcore.apps.validate.memory.found import MemoryRow, MemoryTable
from simcore.apps.validate.memory.played import JobStage, fullest, job_of, needs, stages_of
from simcore.errors import InputError
from simcore.hardware import ClusterSpec, load_cluster
from simcore.memory.caching import PlayedMemory
from simcore.outside import read_text
from simcore.units import GIB
from workloads.jobs.launch.peaks import PeakJob, PeakRow, peak_jobs, read_peak_rows
from workloads.jobs.published import Case, RunRow, describe, read_run_rows
from workloads.parallel.job import Job
from workloads.parallel.memory import MemoryEstimate, outside_bytes

#: Jobs that were played, by what decides on their memory.
_Known = dict[Hashable, tuple[PlayedMemory, JobStage]]

#: A column that only tables of ranks' peaks have.
_PEAKS: Final = "max_allocated_bytes"
#: Of a GPU's memory, driver and context take so much before anything is allocated.
_CONTEXT: Final = GIB
#: Boards whose name does not tell how many GiB they have.
_BOARDS: Final = {"GB200": 186}
#: torchtitan's run_train.sh sets PYTORCH_CUDA_ALLOC_CONF so.
_EXPANDABLE: Final = "expandable_segments:True"


def memory_errors(path: str) -> MemoryTable:
    """Every row of ``path``: predicted, measured, and whether it is said to fit the GPU that it ran on.

    Errors: InputError for a bad file, or one without memory.
    """
    head = read_text(Path(path), "measured memory").partition("\n")[0]
    if _PEAKS in head.split(","):
        return _peaks(path)
    return _published(path)


def _peaks(path: str) -> MemoryTable:
    known: _Known = {}
    return MemoryTable([_peak(row, known) for row in read_peak_rows(path)])


def _peak(row: PeakRow, known: _Known) -> MemoryRow:
    """One rank's peak; jobs that several rows ran are played once."""
    measured = MemoryRow(
        row.id, row.family, row.quality, measured_bytes=row.measured("allocated"),
        measured_reserved_bytes=row.measured("reserved") or None,
    )  # fmt: skip
    try:
        found = [_played(one, known) for one in peak_jobs(row)]
    except InputError as error:
        return replace(measured, skipped_reason=str(error).removeprefix(f"{row.id}: "))
    aim = measured.measured_bytes or 0
    nearest, stage = min(found, key=lambda one: abs(one[0].peak_allocated - aim))
    values = [played.peak_allocated for played, _ in found]
    return replace(
        measured, predicted_bytes=min(max(aim, min(values)), max(values)),
        low_bytes=min(values), high_bytes=max(values), predicted_reserved_bytes=nearest.peak_reserved,
        room_bytes=_room(row.row.text("gpu")), needs_bytes=min(values), parts_bytes=_parts(stage.estimate),
    )  # fmt: skip


def _played(one: PeakJob, known: _Known) -> tuple[PlayedMemory, JobStage]:
    made = one.job
    job = Job(made.model.model_copy(update={"name": ""}), made.parallel, made.training, made.software)
    key = job, one.stage, one.allocator
    if key not in known:
        stage = stages_of(job)[one.stage]
        known[key] = stage.played(one.allocator), stage
    return known[key]


def _room(gpu: str) -> int:
    """Bytes for the allocator on a board called "A100-SXM-80GB"."""
    told = re.search(r"(\d+)\s*GB\b", gpu)
    size = int(told[1]) if told else _BOARDS.get(gpu, 0)
    return size * GIB - _CONTEXT if size else 0


def _published(path: str) -> MemoryTable:
    rows = read_run_rows(path)
    found = [_run(row) for row in rows]
    if not any(row.measured_bytes or row.fits is not None for row in found):
        raise InputError(f"{path}: no row says on which GPU it ran, or what memory it took")
    return MemoryTable(found)


def _run(row: RunRow) -> MemoryRow:
    """A published run: what it took where the table says so, and whether it is said to fit.

    Tables of torchtitan give what the caching allocator held; others what the whole GPU did, context and
    communicators included (inferred: chronicles quote the driver's figure).
    """
    found = MemoryRow(row.id, row.family, row.text("quality").upper())
    try:
        if row.text("mem_gib"):
            found = replace(found, measured_bytes=_measured(row))
        band = describe(row)
        whole_gpu = not band.preset.startswith("torchtitan")
        allocator = "" if whole_gpu else _EXPANDABLE
        stages = [fullest(job_of(case)) for case in band.cases]
        asked = [_asked(case, stage, allocator) for case, stage in zip(band.cases, stages, strict=True)]
    except InputError as error:
        return replace(found, skipped_reason=str(error).removeprefix(f"{row.id}: "))
    room, needed = min(asked, key=lambda pair: pair[1] / pair[0])
    found = replace(
        found, what="whole GPU" if whole_gpu else "reserved", room_bytes=room, needs_bytes=needed
    )  # fmt: skip
    measured = found.measured_bytes
    if measured is None:
        return found
    held = [_held(stage, allocator, whole_gpu=whole_gpu) for stage in stages]
    nearest = min(range(len(held)), key=lambda k: abs(held[k] - measured))
    low, high = min(held), max(held)
    return replace(
        found, predicted_bytes=min(max(measured, low), high), low_bytes=low, high_bytes=high,
        parts_bytes=_parts(stages[nearest].estimate),
    )  # fmt: skip


def _measured(row: RunRow) -> int:
    found = int(row.number("mem_gib") * GIB)
    if found <= 0:
        raise InputError(f"mem_gib = {row.text('mem_gib')!r} is no positive number")
    return found


def _held(stage: JobStage, allocator: str, *, whole_gpu: bool) -> int:
    held = stage.played(allocator).peak_reserved
    return held + (outside_bytes(stage.job) if whole_gpu else 0)


def _asked(case: Case, stage: JobStage, allocator: str) -> tuple[int, int]:
    gpu = _cluster(case.cluster, case.overrides).gpu
    room = gpu.hbm_bytes - gpu.reserved_bytes
    return room, needs(stage, room, allocator)


@cache
def _cluster(name: str, overrides: tuple[tuple[str, str], ...]) -> ClusterSpec:
    return load_cluster(name, overrides)


def _parts(estimate: MemoryEstimate) -> dict[str, int]:
    return {name: value for name, value in vars(estimate).items() if value}
