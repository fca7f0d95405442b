"""PyTorch execution traces (ExecutionTraceObserver JSON): calls of the framework with tensors, without times.

Schemas 1.0.0 to 1.1.x: inputs and outputs as lists beside shapes and types, or as objects of values, shapes
and types; attributes of a node as its keys, or as a list.  Source: torch/csrc/profiler/standalone/
execution_trace_observer.cpp.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from math import prod
from sys import intern
from typing import Any

from simcore.errors import InputError
from workloads.imports.json_events import TraceFile, read_events

_NODES = re.compile(rb'"nodes"\s*:\s*\[|"schema"\s*:\s*"\d+\.\d+\.\d+[^"]*"')
_GROUPS = "process_group:init"
_MAX_NUMBER = 1 << 62
_MAX_BYTES = 1 << 50


@dataclass(frozen=True, slots=True)
class Tensor:
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


@dataclass(frozen=True, slots=True)
class Node:
    """A call.  ``function_id`` numbers calls of the run (0: none); ``parent`` is another node's ``id``.

    Tensors stand in argument order; those of an argument that is a list follow one another.
    """

    id: int
    parent: int
    function_id: int
    thread: int
    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    first_inputs: int = 0  # tensors of the first argument
    text: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ExecutionTrace:
    """One rank's execution trace.  ``groups`` are the ranks of each process group, () for all ranks."""

    label: str
    schema: str
    rank: int
    nodes: tuple[Node, ...]
    groups: dict[str, tuple[int, ...]]


def recognises_execution_trace(_source: TraceFile, head: bytes) -> bool:
    """Whether a JSON file has the keys of an execution trace."""
    return head.lstrip()[:1] == b"{" and b'"traceEvents"' not in head and _NODES.search(head) is not None


def read_execution_trace(source: TraceFile) -> ExecutionTrace:
    """Read one execution trace.

    Errors: InputError with file, node number and reason: no JSON, truncated, a node without name or id, two
    nodes of one id, sizes that no memory has.
    """
    header: dict[str, Any] = {}
    nodes: list[Node] = []
    groups: dict[str, tuple[int, ...]] = {}
    seen: set[int] = set()
    rank, label = -1, source.label
    for number, raw in read_events(source, header, key="nodes"):
        where = f"{label}: node {number}"
        if not isinstance(raw, dict) or not isinstance(raw.get("name"), str):
            raise InputError(f"{where} has no name: not an execution trace")
        node = _node(where, raw)
        if node.id in seen:
            raise InputError(f"{where} has the id {node.id} of an earlier node")
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


def _node(where: str, raw: dict[str, Any]) -> Node:
    attributes: dict[str, Any] = {}
    if "attrs" in raw or "attr" in raw:
        attributes = {
            attr["name"]: attr.get("value")
            for key in ("attrs", "attr")
            if isinstance(raw.get(key), list)
            for attr in raw[key]
            if isinstance(attr, dict) and isinstance(attr.get("name"), str)
        }

    def number(*keys: str, default: int = 0) -> int:
        for key in keys:
            value = raw.get(key, attributes.get(key))
            if type(value) is int and -_MAX_NUMBER < value < _MAX_NUMBER:
                return value
        return default

    sides = []
    for side in ("input", "output"):
        given = raw.get(f"{side}s")
        if isinstance(given, dict):
            values, shapes, types = (given.get(key) for key in ("values", "shapes", "types"))
        else:
            values, shapes, types = given, raw.get(f"{side}_shapes"), raw.get(f"{side}_types")
        arguments: list[tuple[Tensor, ...]] = []
        if isinstance(values, list) and isinstance(shapes, list) and isinstance(types, list):
            arguments = [
                _tensors(where, value, shape, kind)
                for value, shape, kind in zip(values, shapes, types, strict=False)
            ]
        sides.append((arguments, values))
    if type(raw.get("id")) is not int:
        raise InputError(f"{where} has no id: not an execution trace")
    (inputs, values), (outputs, _) = sides
    wanted = raw["name"] == "record_param_comms"
    return Node(
        id=number("id"),
        parent=number("ctrl_deps", "parent"),
        function_id=number("rf_id"),
        thread=number("tid"),
        name=intern(raw["name"]),
        inputs=tuple(tensor for argument in inputs for tensor in argument),
        outputs=tuple(tensor for argument in outputs for tensor in argument),
        first_inputs=len(inputs[0]) if inputs else 0,
        text={**attributes, "values": values} if wanted else {},
    )


def _tensors(where: str, value: Any, shape: Any, kind: Any) -> tuple[Tensor, ...]:
    """The tensors of an argument: itself, or the members of a list."""
    if not isinstance(kind, str) or "Tensor" not in kind or not isinstance(value, list):
        return ()
    if kind.startswith("GenericList["):
        kinds = kind.removeprefix("GenericList[").removesuffix("]").split(",")
        shapes = shape if isinstance(shape, list) else []
        return tuple(
            tensor
            for index, (inner, inner_shape) in enumerate(zip(value, shapes, strict=False))
            for tensor in _tensors(where, inner, inner_shape, kinds[min(index, len(kinds) - 1)])
        )
    if len(value) < 5 or not isinstance(shape, list):
        return ()
    if {*map(type, value[:5]), *map(type, shape)} != _INTEGERS:
        return ()  # nested tensors, or none
    device = str(value[5]) if len(value) > 5 else ""
    known = _described(tuple(shape), kind, value[4], device)
    if not 0 <= known[2] < _MAX_BYTES:
        raise InputError(f"{where} has a tensor of shape {shape} and {known[2]} bytes")
    return (Tensor(value[1], *known),)


_INTEGERS = {int}


@lru_cache(maxsize=1 << 16)
def _described(
    shape: tuple[int, ...], kind: str, width: int, device: str
) -> tuple[tuple[int, ...], str, int, str]:
    """Shape, dtype, bytes and device of a tensor; one object of each for all tensors alike."""
    dtype = kind.removeprefix("Tensor(").removesuffix(")")
    return shape, dtype, prod(shape) * width, device


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


def _rank(node: Node) -> int:
    """The rank that a communication names as its own: the integer before the word for what it does."""
    values = node.text.get("values")
    if isinstance(values, list):
        for before, value in pairwise(values):
            if isinstance(value, str) and type(before) is int:
                return before
    return -1
