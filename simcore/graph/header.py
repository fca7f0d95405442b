"""``graph.json``, read with every key and value checked: the part of a graph folder that people edit."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from simcore.errors import GraphError, InputError, nearest
from simcore.graph.store import SCHEMA_VERSION
from simcore.outside import json_document, read_text

#: More ranks than any machine has; a number beyond it is damage, and would cost memory before it is noticed.
MAX_RANKS: Final = 2**24

_Whole = Annotated[int, Field(ge=0, lt=2**62)]
_Positive = Annotated[int, Field(ge=1, lt=2**62)]
_Rank = Annotated[int, Field(ge=0, le=MAX_RANKS)]
_Dims = list[Annotated[list[_Positive], Field(min_length=2, max_length=2)]]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class WorkloadRecord(_Record):
    """Fields as in :class:`simcore.graph.graph.Workload`."""

    name: str
    world_size: Annotated[int, Field(ge=1, le=MAX_RANKS)]
    dims: dict[str, _Positive]
    num_microbatches: _Whole
    micro_batch_size: _Whole
    seq_len: _Whole
    tokens_per_step: _Whole
    precision: str
    framework: str
    versions: dict[str, str]
    command: str
    model: dict[str, Any]
    options: dict[str, Any]


class GroupRecord(_Record):
    """Fields as in :class:`simcore.graph.groups.ProcessGroup`."""

    name: str
    dims: _Dims
    base_dims: _Dims
    offset: _Rank
    explicit: list[Annotated[list[_Rank], Field(min_length=1)]]


class MemoryRecord(_Record):
    """Fields as in :class:`simcore.graph.graph.MemoryProfile`, bytes."""

    parameters: _Whole
    gradients: _Whole
    optimizer_states: _Whole
    activations_peak: _Whole
    peak: _Whole


class ProgramRecord(_Record):
    """Fields as in :class:`simcore.graph.graph.Program`, its skeleton aside."""

    name: str
    ranks: list[Annotated[list[_Rank], Field(min_length=3, max_length=3)]]
    stage: Annotated[int, Field(ge=0, lt=2**31)]
    layer_offset: list[Annotated[int, Field(ge=-1, lt=2**31)]]
    memory: MemoryRecord


class Header(_Record):
    """The whole of ``graph.json``."""

    schema_version: int
    workload: WorkloadRecord
    groups: list[GroupRecord]
    programs: list[ProgramRecord]
    template_names: list[str]
    template_start: list[_Whole]


_KEYS: Final = sorted(
    {key for record in _Record.__subclasses__() for key in record.model_fields},
)


def read_header(path: Path) -> Header:
    """Read ``graph.json``.  InputError when it is missing; GraphError, naming the key, when it is wrong."""
    if not path.exists():
        raise InputError(f"{path}: missing; not a graph folder")
    try:
        content = json_document(read_text(path, "header of a graph", "json"), str(path))
    except InputError as error:
        raise GraphError(str(error)) from None
    version = content.get("schema_version") if isinstance(content, dict) else None
    if isinstance(content, dict) and version != SCHEMA_VERSION:
        raise GraphError(f"{path}: schema version {version!r}, this program reads {SCHEMA_VERSION}")
    try:
        header = Header.model_validate(content)
    except ValidationError as error:
        raise GraphError(f"{path}: {_reason(error)}") from None
    for name, count in Counter(record.name for record in header.groups).items():
        if count > 1:
            raise GraphError(f"{path}: process group {name!r} is described twice")
    return header


def _reason(error: ValidationError) -> str:
    """The first thing that is wrong, in one line."""
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"]) or "the document"
    if first["type"] == "extra_forbidden":
        return f"unknown key {key!r}{nearest(str(first['loc'][-1]), _KEYS)}"
    if first["type"] == "missing":
        return f"key {key!r} is missing"
    shown = repr(first["input"])
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    return f"{key} is {shown}: {first['msg'][:1].lower()}{first['msg'][1:]}"
