"""PyTorch execution traces (ExecutionTraceObserver JSON): calls of the framework with tensors, without times.

Schemas 1.0.0 to 1.1.x: inputs and outputs as lists beside shapes and types, or as objects of values, shapes
and types; attributes of a node as its keys, or as a list.  Source: torch/csrc/profiler/standalone/
execution_trace_observer.cpp.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from itertools import pairwise
from math import prod
from sys import intern
from typing import Any, NamedTuple

from simcore.errors import InputError
from simcore.outside import quoted
from simcore.records import dataclass
from workloads.imports.fields import WrongFieldError, entries, text, whole
from workloads.imports.files import TraceFile
from workloads.imports.json_events import read_events

_NODES = re.compile(rb'"nodes"\s*:\s*\[|"schema"\s*:\s*"\d+\.\d+\.\d+[^"]*"')
_GROUPS = "process_group:init"
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
        if not isinstance(raw, dict):
            raise InputError(f"{label}: node {number} is no object: not an execution trace")
        try:
            node = _node(raw)
        except WrongFieldError as error:
            raise InputError(f"{label}: node {number} {error}: not an execution trace") from None
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


def _node(raw: dict[str, Any]) -> ObservedNode:
    name = text(raw, "name")
    attributes: dict[str, Any] = {}
    if "attrs" in raw or "attr" in raw:
        attributes = {
            text(attr, "name"): attr.get("value")
            for key in ("attrs", "attr")
            for attr in entries(raw, key, "attributes", lambda attr: type(attr) is dict)
        }
        raw = {**attributes, **raw}
    if type(raw.get("id")) is not int:
        raise WrongFieldError("id", raw.get("id"), "no whole number")
    inputs, first_inputs = _side(raw, "input")
    outputs, _ = _side(raw, "output")
    told = {}
    if name == "record_param_comms":
        given = raw.get("inputs")
        told = {**attributes, "values": given.get("values") if isinstance(given, dict) else given}
    return ObservedNode(
        whole(raw, "id", 0),
        whole(raw, "ctrl_deps" if type(raw.get("ctrl_deps")) is int else "parent", 0),
        whole(raw, "rf_id", 0),
        whole(raw, "tid", 0),
        intern(name),
        inputs,
        outputs,
        first_inputs,
        told,
    )


def _side(raw: dict[str, Any], side: str) -> tuple[tuple[ObservedTensor, ...], int]:
    """The tensors of a node's inputs or outputs, and how many of them the first argument is."""
    given = raw.get(side + "s")
    if type(given) is dict:
        values, shapes, types = (_list(given, key) for key in ("values", "shapes", "types"))
    else:
        values, shapes, types = (_list(raw, side + key) for key in ("s", "_shapes", "_types"))
    found: list[ObservedTensor] = []
    first = -1
    for value, shape, kind in zip(values, shapes, types, strict=False):
        if type(value) is list and type(kind) is str and "Tensor" in kind:
            _add_tensors(value, shape, kind, found)
        if first < 0:
            first = len(found)
    return tuple(found), max(0, first)


def _list(fields: dict[str, Any], key: str) -> list[Any]:
    value = fields.get(key)
    if type(value) is list:
        return value
    if value is None:
        return []
    raise WrongFieldError(key, value, "no list")


def _add_tensors(value: list[Any], shape: Any, kind: str, found: list[ObservedTensor]) -> None:
    """Append the tensors of an argument: itself, or the members of a list."""
    if kind.startswith("GenericList["):
        kinds = kind.removeprefix("GenericList[").removesuffix("]").split(",")
        shapes = shape if isinstance(shape, list) else []
        for index, (inner, inner_shape) in enumerate(zip(value, shapes, strict=False)):
            inner_kind = kinds[min(index, len(kinds) - 1)]
            if type(inner) is list and "Tensor" in inner_kind:
                _add_tensors(inner, inner_shape, inner_kind, found)
        return
    if len(value) < 5 or type(shape) is not list or type(value[1]) is not int:
        return
    try:
        known = _described(kind, *value[4:6], *shape)
    except TypeError:
        return  # nested tensors, or none
    if known is None:
        raise WrongFieldError(
            "a tensor of shape", shape, f"of {quoted(value[4])} bytes an element, which no memory has"
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
    except (ValueError, RecursionError):
        return {}
    groups = {}
    for entry in found if isinstance(found, list) else []:
        if not isinstance(entry, dict):
            continue
        name = entry.get("pg_name", entry.get("pg_id"))
        ranks = entry.get("ranks", [])
        if isinstance(ranks, dict):
            ranks = [int(rank) for rank in ranks if re.fullmatch("[0-9]{1,18}", str(rank))]
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
