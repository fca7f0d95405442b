"""Nsight Systems databases (``nsys export --type sqlite``): each GPU of each process as one rank's recording.

Tables and columns differ between versions: what is missing is asked for first and replaced by its neutral
value.  Only the kernels, copies or memsets of at least one GPU must be there.  Schema: NVIDIA's user guide,
"Nsight Systems exporting", SQLite schema reference.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from simcore.errors import InputError
from simcore.graph.ops import IntArray
from workloads.imports.collective_names import is_communication
from workloads.imports.files import TraceFile
from workloads.imports.job import ImportedJob
from workloads.imports.nsys.database import MAGIC, PROCESS, NsysDatabase, opened_database, sync_records
from workloads.imports.nsys.nvtx import NcclRanges, nvtx_phases, nvtx_steps
from workloads.imports.op_columns import Names
from workloads.imports.recorded import MAX_SPAN_S, Step
from workloads.imports.recording.columns import Activities, ApiCalls, GpuRecording, SyncRecord
from workloads.imports.recording.host_notes import HostNotes, PhaseSpans
from workloads.imports.recording.job import import_recordings
from workloads.imports.recording.occupancy import blocks_per_sm

_PS_PER_NS = 1000
_MAX_SPAN_NS = MAX_SPAN_S * 10**9
_MAX_CLOCK_NS = 1 << 61  # 73 years: the epoch's nanoseconds today are 1.5 times 2**60
_MAX_BYTES = 1 << 50
_VERSION = re.compile(r"(_ptsz|_ptds)?(_v\d+)*$")  # of an API call's name: cudaLaunchKernel_v7000

_KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
_MEMSETS = "CUPTI_ACTIVITY_KIND_MEMSET"
#: How a kernel was launched: grid, block, registers of a thread, shared memory of a block.
_LAUNCH = (
    "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "registersPerThread", "staticSharedMemory",
    "dynamicSharedMemory",
)  # fmt: skip
_CALLS = ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER")

#: Kinds of copies and of memory, where the database has no table that names them (ENUM_CUDA_MEMCPY_OPER).
_COPY_KINDS = ("", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP")
_MEMORY_KINDS = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device", "Managed", "Unknown")


def is_nsys(_source: TraceFile, head: bytes) -> bool:
    """Whether a file is an SQLite database."""
    return head.startswith(MAGIC)


def import_nsys(sources: Sequence[TraceFile], skip_bad: bool, gaps: str) -> ImportedJob:
    """Import Nsight Systems databases; every GPU of every process is a rank, numbered in file order.

    Errors: InputError with file, table and row.
    """
    missing: list[str] = []

    def read(source: TraceFile) -> list[GpuRecording]:
        ranks, notes = read_nsys(source)
        missing.extend(notes)
        return ranks

    job = import_recordings(sources, read, skip_bad=skip_bad, gaps=gaps, origin="nsys")
    sizes = [rank.recorded.collectives.num_bytes for rank in job.ranks if rank.recorded.collectives]
    if (job.report.coupled_collectives or job.report.lone_collectives) and not any(s.any() for s in sizes):
        missing.append(
            "groups and sizes of collectives are not recorded: each stream with NCCL kernels counts as"
            " a group, and what another network would make of them cannot be told"
        )
    return replace(job, report=replace(job.report, missing=tuple(missing)))


def read_nsys(source: TraceFile) -> tuple[list[GpuRecording], list[str]]:
    """The ranks of one database, by process and device, and what it lacks.

    Errors: InputError with file, table, row and reason: no database, truncated, no GPU activities, absurd
    times and sizes.
    """
    with opened_database(source) as database:
        try:
            reader = _NsysReader(database)
            return reader.ranks(), reader.missing
        except sqlite3.DatabaseError as error:
            raise InputError(f"{source.label}: {error} (truncated or damaged database)") from None


class _NsysReader:
    """Reads the tables that there are."""

    def __init__(self, database: NsysDatabase) -> None:
        self.db = database
        self.label = database.label
        self.names = Names()
        self.texts = database.texts()
        self.missing: list[str] = []
        self.origin_ns = 0

    def ranks(self) -> list[GpuRecording]:
        """One recording per process and device."""
        tables = [self._kernels(), self._graphs(), self._copies(), self._memsets()]
        gpu = np.concatenate(tables, axis=1)
        if not gpu.shape[1]:
            if any(name.startswith("rocpd_") for name in self.db.columns):
                raise InputError(
                    f"{self.label}: is a rocpd database: record JSON (rocprofv3 --output-format json)"
                )
            there = ", ".join(sorted(name for name in self.db.columns if name.startswith("CUPTI"))) or "none"
            raise InputError(
                f"{self.label}: no GPU activities (kernels, copies): nothing to replay; CUPTI tables: {there}"
            )
        calls = self._calls()
        # Where activities do not tell their process there is one; its calls may be those of any thread.
        told = bool((gpu[10] != 0).any())
        process = gpu[10] if told else np.zeros_like(gpu[10])
        first = int(gpu[0].min())
        if calls.shape[1]:
            first = min(first, int(calls[0].min()))
        else:
            self.missing.append(f"{self.label}: no API calls: all ops count as launched before the recording")
        self.origin_ns = first - first % 1000
        pairs = np.unique(np.stack([process, gpu[3]]), axis=1).T.tolist()
        syncs = sync_records(self.db, by_process=told)
        steps = nvtx_steps(self.db, self.texts, self._after_ps, by_process=told)
        phases = nvtx_phases(self.db, self.texts, self._after_ps)
        self.nccl = NcclRanges(self.db, self.texts)
        ranks = []
        for pid, device in pairs:
            mine = (process == pid) & (gpu[3] == device)
            own = calls[2] & PROCESS == pid if told else np.ones(calls.shape[1], dtype=np.bool_)
            ranks.append(
                self._rank(
                    f"{self.label} (device {device})" if len(pairs) > 1 else self.label, gpu[:, mine],
                    calls[:, own], syncs.get(pid if told else 0, {}), steps.get(pid if told else 0, ()),
                    device, phases[pid if told else 0],
                )
            )  # fmt: skip
        return ranks

    def _rank(
        self, label: str, gpu: IntArray, calls: IntArray, syncs: dict[int, SyncRecord],
        steps: tuple[Step, ...], device: int, phases: PhaseSpans,
    ) -> GpuRecording:  # fmt: skip
        calls = calls[:, np.argsort(calls[0], kind="stable")]
        communicates = is_communication(self.names.values())[gpu[6]] & (gpu[2] == 0)
        told, meta = self.nccl.of_activities(gpu[5], communicates, calls)
        thread = np.unique(calls[2], return_inverse=True)[1].reshape(-1)
        to_ps = self._after_ps
        limits = self.db.gpu_limits(device)
        return GpuRecording(
            label=label, names=self.names.values(),
            gpu=Activities(*(
                to_ps(gpu[0]), to_ps(gpu[1]), *gpu[2:8], told, gpu[9], gpu[11],
                blocks_per_sm(np.stack([*gpu[11:15], gpu[11] * 0]), limits), *gpu[12:15],
            )),
            calls=ApiCalls(to_ps(calls[0]), to_ps(calls[1]), thread, calls[3], calls[4]),
            origin_us=self.origin_ns // 1000, base_ns=self.db.epoch_ns(), gpu_name=self.db.gpu_name(device),
            num_sms=limits.get("numSms", 0), syncs=syncs, meta=tuple(meta), notes=HostNotes(phases),
            steps=steps,
        )  # fmt: skip

    def _after_ps(self, time_ns: Any) -> Any:
        """Time in ps after the origin: of a number or of a column."""
        return (time_ns - self.origin_ns) * _PS_PER_NS

    # Activities are columns: start, end, kind, device, stream, correlation, name, bytes, meta, row; process;
    # blocks, threads of a block, registers of a thread, shared bytes of a block.

    def _kernels(self) -> IntArray:
        named = next(
            (c for c in ("demangledName", "shortName", "mangledName", "nameId") if self.db.has(_KERNELS, c)),
            "",
        )
        rows = self._activities(_KERNELS, [named, *_LAUNCH])
        columns = self._columns(_KERNELS, rows, 0, self._text_names(rows[:, 7], "kernel"), rows[:, 6] * 0)
        sizes = np.clip(rows[:, 8:14], 0, 1 << 31)
        columns[11] = np.clip(sizes[:, :3].astype(np.float64).prod(axis=1), 0, 1e18).astype(np.int64)
        columns[12] = np.minimum(sizes[:, 3:].prod(axis=1), 1024)  # no block has more threads
        columns[13], columns[14] = rows[:, 14], rows[:, 15] + rows[:, 16]
        return columns

    def _graphs(self) -> IntArray:
        """CUDA graphs that were recorded as a whole, each launch as one activity."""
        rows = self._activities(
            _GRAPHS, ["graphExecId" if self.db.has(_GRAPHS, "graphExecId") else "graphId"]
        )
        names = self._formatted(rows[:, 7], lambda graph: f"CUDA graph {graph}")
        if len(rows):
            self.missing.append(
                f"{self.label}: {len(rows)} launches of CUDA graphs are recorded as a whole, not by kernel:"
                " one op each, communication inside unseen (nsys: --cuda-graph-trace=node)"
            )
        return self._columns(_GRAPHS, rows, 0, names, rows[:, 6] * 0)

    def _copies(self) -> IntArray:
        rows = self._activities(_COPIES, ["bytes", "copyKind", "srcKind", "dstKind"])
        moved = rows[:, 8] > 10  # pages of unified memory that migrate belong to no stream
        if moved.any():
            self.missing.append(f"{self.label}: {int(moved.sum())} migrations of unified memory are left out")
        rows = rows[~moved]
        memory = self.db.enum("ENUM_CUDA_MEM_KIND", _MEMORY_KINDS)

        def name(kinds: int) -> str:
            kind, source, target = kinds >> 16, kinds >> 8 & 255, kinds & 255
            what = _COPY_KINDS[kind] if 0 <= kind < len(_COPY_KINDS) else str(kind)
            return f"Memcpy {what} ({memory.get(source, 'Unknown')} -> {memory.get(target, 'Unknown')})"

        kinds = (rows[:, 8] << 16) | ((rows[:, 9] & 255) << 8) | (rows[:, 10] & 255)
        return self._columns(_COPIES, rows, 1, self._formatted(kinds, name), rows[:, 7])

    def _memsets(self) -> IntArray:
        rows = self._activities(_MEMSETS, ["bytes", "memKind"])
        memory = self.db.enum("ENUM_CUDA_MEM_KIND", _MEMORY_KINDS)
        names = self._formatted(rows[:, 8], lambda kind: f"Memset ({memory.get(kind, 'Unknown')})")
        return self._columns(_MEMSETS, rows, 2, names, rows[:, 7])

    def _activities(self, table: str, more: list[str]) -> IntArray:
        """Row, start, end, device, stream, correlation, process and the columns ``more`` (0: not there)."""
        columns = ["start", "end", "deviceId", "streamId", "correlationId", "globalPid", *more]
        rows = self.db.integers(table, columns)
        self._check_times(table, rows)
        return rows

    def _check_times(self, table: str, rows: IntArray) -> None:
        if not len(rows):
            return
        bad = ((rows[:, 1:3] < -_MAX_CLOCK_NS) | (rows[:, 1:3] > _MAX_CLOCK_NS)).any(axis=1)
        times = np.clip(rows[:, 1:3], -_MAX_CLOCK_NS, _MAX_CLOCK_NS)  # differences then fit 64 bits
        bad |= (times[:, 1] < times[:, 0]) | (
            np.abs(times[:, 0] - int(np.median(times[:, 0]))) > _MAX_SPAN_NS
        )
        bad |= times[:, 1] - times[:, 0] > _MAX_SPAN_NS
        if bad.any():
            row, start, end = (int(v) for v in rows[np.flatnonzero(bad)[0], :3])
            reason = "ends before it starts" if end < start else "is more than a week away from the others"
            raise InputError(f"{self.label}: {table}, row {row}: from {start} to {end} ns: it {reason}")

    def _columns(
        self, table: str, rows: IntArray, kind: int, names: IntArray, num_bytes: IntArray
    ) -> IntArray:
        bad = (num_bytes < 0) | (num_bytes > _MAX_BYTES)
        if bad.any():
            at = int(np.flatnonzero(bad)[0])
            raise InputError(f"{self.label}: {table}, row {rows[at, 0]}: moves {num_bytes[at]} bytes")
        zero = np.zeros(len(rows), dtype=np.int64)
        return np.stack([
            rows[:, 1], rows[:, 2], zero + kind, rows[:, 3], rows[:, 4], rows[:, 5], names, num_bytes,
            zero - 1, rows[:, 0], rows[:, 6], zero, zero, zero, zero,
        ])  # fmt: skip

    def _text_names(self, ids: IntArray, what: str) -> IntArray:
        return self._formatted(ids, lambda number: self.texts.get(number, f"{what} {number}"))

    def _formatted(self, values: IntArray, name: Callable[[int], str]) -> IntArray:
        """The name number of each value, each different one formatted once."""
        different, inverse = np.unique(values, return_inverse=True)
        codes = np.array([self.names.code(name(v)) for v in different.tolist()], dtype=np.int64)
        return codes[inverse.reshape(-1)] if len(values) else np.zeros(0, dtype=np.int64)

    def _calls(self) -> IntArray:
        """Start, end, serialized thread, name and correlation of API calls."""
        found = [np.zeros((5, 0), dtype=np.int64)]
        for table in _CALLS:
            rows = self.db.integers(table, ["start", "end", "globalTid", "nameId", "correlationId"])
            self._check_times(table, rows)
            names = self._formatted(
                rows[:, 4], lambda number: _VERSION.sub("", self.texts.get(number, f"call {number}"))
            )
            found.append(np.stack([rows[:, 1], rows[:, 2], rows[:, 3], names, rows[:, 5]]))
        return np.concatenate(found, axis=1)
