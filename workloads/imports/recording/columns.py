"""One rank's recording as columns, whatever profiler and file it came from."""

from __future__ import annotations

import re
from dataclasses import field
from functools import cached_property

import numpy as np

from simcore.collectives.kinds import kind_of
from simcore.graph.ops import IntArray
from simcore.records import dataclass
from workloads.imports.recorded import Step
from workloads.imports.recording.host_notes import HostNotes

GPU_KINDS = ("kernel", "memcpy", "memset")
UNKNOWN = -1
_RANK_LIST = re.compile(r"\[\s*\d{1,18}(?:\s*,\s*\d{1,18})*\s*\]")  # all of them, not "[0, 1, ..., 63]"
_ELEMENT_BYTES = {
    "float": 4, "float32": 4, "int": 4, "half": 2, "float16": 2, "bfloat16": 2, "double": 8, "float64": 8,
    "long": 8, "long int": 8, "int32": 4, "int64": 8, "byte": 1, "unsigned char": 1, "char": 1,
    "bool": 1, "int8": 1, "uint8": 1,
}  # fmt: skip


def _empty() -> IntArray:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Activities:
    """What ran on GPUs, in the order of the file; times in ps after the trace's origin.

    ``kind`` indexes :data:`GPU_KINDS`; ``correlation`` 0 or less: none recorded; ``meta`` indexes
    :attr:`GpuRecording.meta` (-1: none); ``event`` is the number of the event in the file.  ``blocks`` are a
    kernel's thread blocks, ``blocks_per_sm`` how many fit on an SM at a time, ``threads``, ``registers`` (of
    a thread) and ``shared_bytes`` what a block takes: 0 where not recorded, all empty where nothing is.
    ``moved`` has two rows, bytes that each reads and writes, 0 where not recorded; None where nothing is.
    """

    start_ps: IntArray
    end_ps: IntArray
    kind: IntArray
    device: IntArray
    stream: IntArray
    correlation: IntArray
    name: IntArray
    num_bytes: IntArray
    meta: IntArray
    event: IntArray
    blocks: IntArray = field(default_factory=_empty)
    blocks_per_sm: IntArray = field(default_factory=_empty)
    threads: IntArray = field(default_factory=_empty)
    registers: IntArray = field(default_factory=_empty)
    shared_bytes: IntArray = field(default_factory=_empty)
    moved: IntArray | None = None

    def __len__(self) -> int:
        return len(self.start_ps)


@dataclass(frozen=True)
class ApiCalls:
    """Calls of the CUDA or HIP API, sorted by start; ``thread`` numbers host threads."""

    start_ps: IntArray
    end_ps: IntArray
    thread: IntArray
    name: IntArray
    correlation: IntArray

    def __len__(self) -> int:
        return len(self.start_ps)


@dataclass(frozen=True)
class FrameworkCalls:
    """Ops of the framework whose input shapes were recorded, in the order of the file.

    ``thread`` is numbered as in :class:`ApiCalls`; ``name``, ``shapes`` (JSON, as :class:`OpTable` has them)
    and ``types`` (JSON) are numbers in :attr:`GpuRecording.names`; so are ``outputs``, the shapes of what was
    written, empty where no trace tells them.
    """

    start_ps: IntArray = field(default_factory=_empty)
    end_ps: IntArray = field(default_factory=_empty)
    thread: IntArray = field(default_factory=_empty)
    name: IntArray = field(default_factory=_empty)
    shapes: IntArray = field(default_factory=_empty)
    types: IntArray = field(default_factory=_empty)
    outputs: IntArray = field(default_factory=_empty)

    def __len__(self) -> int:
        return len(self.start_ps)


@dataclass(frozen=True)
class SyncRecord:
    """A recorded synchronisation (cuda_sync): what call ``correlation`` made its stream or the host wait for.

    ``source_stream`` and ``record_correlation`` (the cudaEventRecord call) are -1 where not recorded.
    """

    kind: str
    correlation: int
    stream: int
    source_stream: int
    record_correlation: int


@dataclass(frozen=True)
class CollectiveMeta:
    """What a communication kernel says about itself; empty or -1 where it does not.

    ``sequence`` is NCCL's number of the call, ``peer`` the rank that a send or receive goes to or comes from.
    """

    collective: str
    group: str
    group_ranks: str
    dtype: str
    in_elements: int
    out_elements: int
    group_size: int
    sequence: int = -1
    peer: int = -1

    @cached_property
    def members(self) -> tuple[int, ...]:
        """The ranks of its group; () where not all are named."""
        if not _RANK_LIST.fullmatch(self.group_ranks):
            return ()
        return tuple(int(rank) for rank in re.findall(r"\d+", self.group_ranks))

    def num_bytes(self, kind: str) -> int:
        """Size in nccl-tests' convention of a collective of this ``kind``; 0 where it is not recorded."""
        elements = self.out_elements if kind_of(kind).gives_part else self.in_elements
        return max(0, elements) * _ELEMENT_BYTES.get(self.dtype.lower().removeprefix("c10::"), 0)


@dataclass(frozen=True)
class GpuRecording:
    """One rank's recording.  ``origin_us`` is its first time stamp, us since the epoch of ``base_ns``.

    ``names`` are what columns number.  Where not recorded, ``rank`` and ``world_size`` are -1, ``gpu_name``
    is "" and ``num_sms`` 0.  ``resolution_ps``: 1 us where all time stamps are whole, else 1 ns.  ``notes``
    say what the host was doing.  ``steps_told_by``: what steps are told by where the profiler marks none, ""
    where it does.  ``inferred_host_waits``: waits of the host among ``calls`` that were not recorded as such.
    """

    label: str
    names: tuple[str, ...]
    gpu: Activities
    calls: ApiCalls
    origin_us: int
    base_ns: int = 0
    resolution_ps: int = 1000
    rank: int = UNKNOWN
    world_size: int = UNKNOWN
    gpu_name: str = ""
    num_sms: int = 0
    syncs: dict[int, SyncRecord] = field(default_factory=dict)
    meta: tuple[CollectiveMeta, ...] = ()
    framework: FrameworkCalls = field(default_factory=FrameworkCalls)
    notes: HostNotes = field(default_factory=HostNotes)
    steps: tuple[Step, ...] = ()
    steps_told_by: str = ""
    inferred_host_waits: int = 0

    def call_begins(self) -> dict[int, int]:
        """When the calls began whose events synchronisation records name, by correlation id."""
        named = [record.record_correlation for record in self.syncs.values()]
        rows = np.isin(self.calls.correlation, named) if named else slice(0)
        correlation, start = self.calls.correlation[rows], self.calls.start_ps[rows]
        return dict(zip(correlation.tolist(), start.tolist(), strict=True))
