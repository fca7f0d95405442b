"""PyTorch execution traces (ExecutionTraceObserver JSON): calls of the framework with tensors, without times.

Schemas 1.0.0 to 1.1.x: inputs and outputs as lists beside shapes and types, or as objects of values, shapes
and types; attributes of a node as its keys, or as a list.  Source: torch/csrc/profiler/standalone/
execution_trace_observer.cpp.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import prod
from sys import intern
from typing import Any, NamedTuple

from simcore.errors import InputError
from workloads.imports.files import TraceFile
from workloads.imports.json_events import read_events

_NODES = re.compile(rb'"nodes"\s*:\s*\[|"schema"\s*:\s*"\d+\.\d+\.\d+[^"]*"')
_GROUPS = "process_group:init"
_MAX_NUMBER = 1 << 62
_MAX_BYTES = 1 << 50


class ObservedTensor(NamedTuple):
    """A tensor as a node saw it.  ``storage`` tells memory apart; ``dtype`` is torch's ("c10::BFloat16")."""

    storage: int
    shape: tuple[int, ...]
    dtype: str
    num_bytes: int
    device: str

    @property
    def elements(self) -> int:
        """Number of elements of the shape."""
        return prod(self.shape)


class ObservedNode(NamedTuple):
    """A call.  ``function_id`` numbers calls of the run (0: none); ``parent`` is another node's ``id``.

    Tensors stand in argument order; those of an argument that is a list follow one another.
    """

    id: int
    parent: int
    function_id: int
    thread: int
    name: str
    inputs: tuple[ObservedTensor, ...]
    outputs: tuple[ObservedTensor, ...]
    first_inputs: int = 0  # tensors of the first argument
    text: dict[str, Any] = {}  # noqa: RUF012 - nobody writes to it


@dataclass(frozen=True)
class ExecutionTrace:
    """One rank's execution trace.  ``groups`` are the ranks of each process group, () for all ranks."""

    label: str
    schema: str
    rank: int
    nodes: tuple[ObservedNode, ...]
    groups: dict[str, tuple[int, ...]]


def is_execution_trace(_source: TraceFile, head: bytes) -> bool:
    """Whether a JSON file has the keys of an execution trace."""
    return head.lstrip()[:1] == b"{" and b'"traceEvents"' not in head and _NODES.search(head) is not None


def read_execution_trace(source: TraceFile) -> ExecutionTrace:
    """Read one execution trace.

    Errors: InputError with file, node number and reason: no JSON, truncated, a node without name or id, two
    nodes of one id, sizes that no memory has.
    """
    header: dict[str, Any] = {}
    nodes: list[ObservedNode] = []
    groups: dict[str, tuple[int, ...]] = {}
    seen: set[int] = set()
    rank, label = -1, source.label
    for number, raw in read_events(source, header, key="nodes"):
        if not isinstance(raw, dict) or not isinstance(raw.get("name"), str):
            raise InputError(f"{label}: node {number} has no name: not an execution trace")
        node = _node(number, label, raw)
        if node.id in seen:
            raise InputError(f"{label}: node {number} has the id {node.id} of an earlier node")
        seen.add(node.id)
        if _GROUPS in node.name:
            groups.update(_process_groups(raw))
        if node.name == "record_param_comms":
            rank = max(rank, _rank(node))
        nodes.append(node)
    if not nodes:
        raise InputError(f"{source.label}: an execution trace without nodes")
    nodes.sort(key=lambda node: (node.function_id, node.id))
    return ExecutionTrace(source.label, str(header.get("schema", "")), rank, tuple(nodes), groups)


def _node(where: int, label: str, raw: dict[str, Any]) -> ObservedNode:
    name = raw["name"]
    attributes: dict[str, Any] = {}
    if "attrs" in raw or "attr" in raw:
        attributes = {
            attr["name"]: attr.get("value")
            for key in ("attrs", "attr")
            if isinstance(raw.get(key), list)
            for attr in raw[key]
            if isinstance(attr, dict) and isinstance(attr.get("name"), str)
        }
        raw = {**attributes, **raw}
    if type(raw.get("id")) is not int:
        raise InputError(f"{label}: node {where} has no id: not an execution trace")
    inputs, first_inputs = _side(where, label, raw, "input")
    outputs, _ = _side(where, label, raw, "output")
    text = {}
    if name == "record_param_comms":
        given = raw.get("inputs")
        text = {**attributes, "values": given.get("values") if isinstance(given, dict) else given}
    parent = raw.get("ctrl_deps")
    return ObservedNode(
        _number(raw["id"]),
        _number(parent if type(parent) is int else raw.get("parent")),
        _number(raw.get("rf_id")),
        _number(raw.get("tid")),
        intern(name),
        inputs,
        outputs,
        first_inputs,
        text,
    )


def _number(value: object) -> int:
    return value if type(value) is int and -_MAX_NUMBER < value < _MAX_NUMBER else 0


def _side(where: int, label: str, raw: dict[str, Any], side: str) -> tuple[tuple[ObservedTensor, ...], int]:
    """The tensors of a node's inputs or outputs, and how many of them the first argument is."""
    given = raw.get(side + "s")
    if isinstance(given, dict):
        values, shapes, types = given.get("values"), given.get("shapes"), given.get("types")
    else:
        values, shapes, types = given, raw.get(side + "_shapes"), raw.get(side + "_types")
    if type(values) is not list or type(shapes) is not list or type(types) is not list:
        return (), 0
    found: list[ObservedTensor] = []
    first = -1
    for value, shape, kind in zip(values, shapes, types, strict=False):
        if type(value) is list and type(kind) is str and "Tensor" in kind:
            _add_tensors(where, label, value, shape, kind, found)
        if first < 0:
            first = len(found)
    return tuple(found), max(0, first)


def _add_tensors(
    where: int, label: str, value: list[Any], shape: Any, kind: str, found: list[ObservedTensor]
) -> None:
    """Append the tensors of an argument: itself, or the members of a list."""
    if kind.startswith("GenericList["):
        kinds = kind.removeprefix("GenericList[").removesuffix("]").split(",")
        shapes = shape if isinstance(shape, list) else []
        for index, (inner, inner_shape) in enumerate(zip(value, shapes, strict=False)):
            inner_kind = kinds[min(index, len(kinds) - 1)]
            if type(inner) is list and "Tensor" in inner_kind:
                _add_tensors(where, label, inner, inner_shape, inner_kind, found)
        return
    if len(value) < 5 or type(shape) is not list or type(value[1]) is not int:
        return
    try:
        known = _described(kind, *value[4:6], *shape)
    except TypeError:
        return  # nested tensors, or none
    if known is None:
        raise InputError(
            f"{label}: node {where} has a tensor of shape {shape} and {value[4]} bytes an element"
        )
    found.append(ObservedTensor(value[1], *known))


@lru_cache(maxsize=1 << 16)
def _described(
    kind: str, width: int, device: object = "", *shape: int
) -> tuple[tuple[int, ...], str, int, str] | None:
    """Shape, dtype, bytes and device of a tensor, one object of each for all tensors alike; None: absurd.

    Errors: TypeError where sizes are no integers.
    """
    if {type(width), *map(type, shape)} != {int}:
        raise TypeError("a size is no integer")
    num_bytes = prod(shape) * width
    if not 0 <= num_bytes < _MAX_BYTES:
        return None
    return shape, kind.removeprefix("Tensor(").removesuffix(")"), num_bytes, str(device)


def _process_groups(raw: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Ranks by group name: the observer writes them as JSON text in the first input of a node of its own."""
    given = raw.get("inputs")
    values = given.get("values") if isinstance(given, dict) else given
    text = values[0] if isinstance(values, list) and values else None
    try:
        found = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return {}
    groups = {}
    for entry in found if isinstance(found, list) else []:
        if not isinstance(entry, dict):
            continue
        name = entry.get("pg_name", entry.get("pg_id"))
        ranks = entry.get("ranks", [])
        if isinstance(ranks, dict):
            ranks = [int(rank) for rank in ranks if str(rank).isdigit()]
        if name is not None and isinstance(ranks, list) and all(type(rank) is int for rank in ranks):
            groups[str(name)] = tuple(ranks)
    return groups


def _rank(node: ObservedNode) -> int:
    """The rank that a communication names as its own: the integer before the word for what it does."""
    values = node.text.get("values")
    if isinstance(values, list):
        for before, value in pairwise(values):
            if isinstance(value, str) and type(before) is int:
                return before
    return -1
