"""``run.json``: what was simulated, with what, and everything that was assumed.

One model for writing and for reading, so that a run folder explains itself without the program that made it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from simcore.errors import InputError, nearest
from simcore.graph.groups import ProcessGroup
from simcore.outside import json_document, read_bytes
from simcore.timeline.schema import RUN_FILE, SCHEMA_VERSION
from simcore.units import format_time, ps_from_s, what_counts

#: A number of things.
Count = Annotated[int, Field(ge=0)]


class _RunRecord(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)


class FlopCounts(_RunRecord):
    """Flops of one step, all ranks together; a multiply-add counts 2.

    ``model``: forward and backward as traced, attention scores of all s x s pairs (Megatron-LM's and PaLM's
    count).  ``model_causal``: the same with attention halved, since a causal mask needs half of the pairs.
    ``executed``: everything that ran, recomputation included.  ``attention``: the part of ``model`` that is
    halved.
    """

    model: Count = 0
    model_causal: Count = 0
    executed: Count = 0
    attention: Count = 0


class StageMemory(_RunRecord):
    """Peak memory per GPU of the ranks of one program, bytes; ``capacity`` is what a framework can have."""

    program: str
    stage: Count
    num_ranks: Count
    parameters: Count
    gradients: Count
    optimizer_states: Count
    activations: Count
    peak: Count
    capacity: Count


class HeldAtPeak(_RunRecord):
    """``count`` storages of one name (over layers and microbatches), ``num_bytes`` together."""

    category: str
    name: str
    count: Count
    num_bytes: Count


class MemoryPeak(_RunRecord):
    """When one GPU of a stage holds most, what it does then (``instant``), and what is ``largest``."""

    stage: Count
    time_ps: Count
    num_bytes: Count
    instant: str = ""
    largest: tuple[HeldAtPeak, ...] = ()


class ResourceChange(_RunRecord):
    """What the step takes with a tenth less and a tenth more of one resource, seconds."""

    what: str
    step_time_s_less: float
    step_time_s_more: float


class GroupLayout(_RunRecord):
    """A family of process groups as strides (:class:`ProcessGroup`)."""

    dims: tuple[tuple[int, int], ...]
    base_dims: tuple[tuple[int, int], ...] = ()
    offset: int = 0
    explicit: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of(cls, group: ProcessGroup) -> GroupLayout:
        """The layout of ``group``."""
        return cls(dims=group.dims, base_dims=group.base_dims, offset=group.offset, explicit=group.explicit)

    def check(self, name: str, world_size: int) -> None:
        """InputError for a group of more ranks than the job has."""
        group = self.group(name)
        if group.size > world_size or any(len(members) > world_size for members in self.explicit):
            raise InputError(
                f"{RUN_FILE}: process group {name!r} is larger than the job of {world_size:,} ranks"
            )

    def group(self, name: str) -> ProcessGroup:
        """The process group again."""
        return ProcessGroup(name, self.dims, self.base_dims, self.offset, self.explicit)


class _GpuMemory(BaseModel):
    """What is asked of ``cluster["gpu"]``."""

    name: str = ""
    num_sms: Count = 0
    hbm_bytes: Count = 0
    launch_overhead_s: float = Field(default=0.0, ge=0, le=1)
    like: str | None = None
    sources: dict[str, str] = Field(default_factory=dict)


class _Cluster(BaseModel):
    """What is asked of ``cluster``; it says more."""

    name: str = ""
    gpus_per_node: int = Field(default=1, ge=1)
    nics_per_node: int = Field(default=1, ge=1)
    gpu: _GpuMemory = Field(default_factory=_GpuMemory)


class _Step(BaseModel):
    """A recorded step of a rank: its first and last op."""

    rank: Count
    step: int
    first_op: Count
    last_op: Count


class _Options(BaseModel):
    """What is asked of a replay's ``options``; they say more."""

    recorded_ranks: list[Count] | None = None
    steps: list[_Step] | None = None


class WorkloadInfo(_RunRecord):
    """What was run; fields as in :class:`simcore.graph.graph.Workload`."""

    name: str
    world_size: int = Field(ge=1)
    dims: dict[str, int] = Field(default_factory=dict)
    num_microbatches: Count = 1
    micro_batch_size: Count = 1
    seq_len: Count = 0
    tokens_per_step: Count = 0
    precision: str = ""
    framework: str = ""
    versions: dict[str, str] = Field(default_factory=dict)
    command: str = ""
    model: dict[str, Any] = Field(default_factory=dict)
    options: dict[str, Any] = Field(default_factory=dict)

    @field_validator("options")
    @classmethod
    def _known_options(cls, value: dict[str, Any]) -> dict[str, Any]:
        _Options.model_validate(value)
        return value

    @property
    def counted(self) -> str:
        """What ``tokens_per_step`` counts: samples where each is one thing, no sequence."""
        return what_counts(self.seq_len)


class StepBand(_RunRecord):
    """What measured step times of such jobs lie within: ``level`` of them between ``low_s`` and ``high_s``.

    ``runs``: number of measured runs that it rests on (an effective one); ``widened``: factor by which it was
    widened where none is near.  ``reasons``: why, and what the band does not cover.
    """

    low_s: float
    high_s: float
    level: float
    runs: float = 0.0
    widened: float = 1.0
    reasons: tuple[str, ...] = ()

    @property
    def ends(self) -> str:
        """Both ends: "13.9 to 15.6 s"."""
        low, high = (format_time(ps_from_s(end)) for end in (self.low_s, self.high_s))
        same = low.split()[-1] == high.split()[-1]
        return f"{low.split()[0] if same else low} to {high}"


class NearestRun(_RunRecord):
    """A measured run near the job; ``error`` is predicted over measured, less one.

    ``differs``: what it has that the job has not, what matters most first.
    """

    id: str
    family: str
    framework: str
    distance: float
    predicted_s: float
    measured_s: float
    error: float
    differs: tuple[str, ...] = ()


class AssumedValue(_RunRecord):
    """What a question left open: ``key``, the value it was given, and why.

    The key is one of ``--set``, "cluster" (``--cluster``), or "" where there is none to say it by.
    """

    key: str = ""
    value: Any = None
    why: str = ""


class RunInfo(_RunRecord):
    """Everything about a run that is not a row.

    ``asked``: the question, as arguments of the command that asks it; ``question``: its digest; ``software``:
    the kernel choices of a described job; ``assumed``: what the question left open.  ``memory_verdict``:
    whether it fits, in a sentence; ``memory_peaks``: of the stages of ``memory.parquet``; ``tornado``: where
    it was asked for.
    ``peak_flops_per_s`` is one GPU's dense peak in ``peak_math`` (the denominator of MFU).  ``origins`` is
    the share of kernel time (alone) by origin of its estimate, ``communication_error`` one standard deviation
    of the communication time, relative.  ``band`` is that of the step time and ``nearest`` the measured runs
    most like the job; None and empty in folders of before.  ``wall_s`` is wall time by stage of the program.
    ``digest`` is :meth:`simcore.timeline.reader.Timeline.digest`.
    """

    schema_version: str = SCHEMA_VERSION
    versions: dict[str, str]
    commit: str | None
    graph_hash: str
    profile_hash: str
    workload: WorkloadInfo
    groups: dict[str, GroupLayout]
    cluster: dict[str, Any]
    settings: dict[str, str]
    asked: str = ""
    question: str = ""
    software: dict[str, Any] = Field(default_factory=dict)
    assumed: tuple[AssumedValue, ...] = ()
    network: str
    seed: int
    step_ps: int = Field(gt=0)
    engine_events: Count
    num_rank_classes: Count
    digest: str
    flops: FlopCounts
    peak_flops_per_s: float = Field(ge=0)
    peak_math: str
    memory: tuple[StageMemory, ...] = ()
    memory_verdict: str = ""
    memory_peaks: tuple[MemoryPeak, ...] = ()
    tornado: tuple[ResourceChange, ...] = ()
    origins: dict[str, float] = Field(default_factory=dict)
    communication_error: float = 0.0
    band: StepBand | None = None
    nearest: tuple[NearestRun, ...] = ()
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    wall_s: dict[str, float] = Field(default_factory=dict)

    @field_validator("cluster")
    @classmethod
    def _known_cluster(cls, value: dict[str, Any]) -> dict[str, Any]:
        _Cluster.model_validate(value)
        return value

    @classmethod
    def read(cls, run_dir: Path) -> RunInfo:
        """``run.json`` of a run folder.  InputError when it is missing, damaged or of another version."""
        path = run_dir / RUN_FILE
        if not path.is_file():
            raise InputError(f"{run_dir} is not a run folder: it has no {RUN_FILE}")
        content = json_document(read_bytes(path, "a run's record", "json"), str(path))
        try:
            info = cls.model_validate(content)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "document"
            raise InputError(f"{path}: {where}: {first['msg']}") from error
        world_size = info.workload.world_size
        for name, layout in info.groups.items():
            layout.check(name, world_size)
        if len(info.workload.options.get("recorded_ranks") or range(world_size)) != world_size:
            raise InputError(f"{path}: recorded_ranks does not name each of {world_size:,} ranks")
        if info.schema_version != SCHEMA_VERSION:
            raise InputError(
                f"{path}: schema version {info.schema_version!r}, this program reads {SCHEMA_VERSION!r}"
            )
        return info

    def write(self, run_dir: Path) -> None:
        """Write ``run.json``."""
        (run_dir / RUN_FILE).write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")

    def group(self, name: str) -> ProcessGroup:
        """The process group of that name.  InputError for another."""
        if name not in self.groups:
            raise InputError(f"{RUN_FILE} has no process group {name!r}{nearest(name, self.groups)}")
        return self.groups[name].group(name)

    def coordinates(self, rank: int) -> dict[str, int]:
        """Position of ``rank`` on each axis of size > 1 that has a process group: ``{"pp": 3, "tp": 0}``."""
        found = {}
        for axis, size in self.workload.dims.items():
            if size > 1 and axis in self.groups:
                group = self.group(axis)
                if group.contains(rank):
                    found[axis] = group.index_of(rank)
        return found
