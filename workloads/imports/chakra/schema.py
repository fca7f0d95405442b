"""Chakra's protobuf messages.

Source: MLCommons Chakra, schema/protobuf/et_def.proto.  The metadata's version is read as bytes, for older
files have an attribute in its place.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cache
from typing import Any, Final

from workloads.imports.protobuf import ONE_OF, SCALARS, message_classes

#: What the manifest of an exported folder says that it holds.
EXPORT: Final = "Chakra export"

#: The largest packet of the delimited stream that is taken for a node.
MAX_MESSAGE_BYTES = 64 << 20


class NodeType(IntEnum):
    """What a node does."""

    INVALID = 0
    METADATA = 1
    MEM_LOAD = 2
    MEM_STORE = 3
    COMP = 4
    COMM_SEND = 5
    COMM_RECV = 6
    COMM_COLL = 7


#: ``comm_type`` of a node: Chakra's CollectiveCommType, as the graph calls it.
COLLECTIVES = (
    "all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all", "reduce_scatter",
    "reduce_scatter", "barrier",
)  # fmt: skip

_ATTRIBUTE = [(1, "name", "string", ""), (2, "doc_string", "string", "")]
for _index, _scalar in enumerate(SCALARS):
    _ATTRIBUTE += [
        (3 + 2 * _index, f"{_scalar}_val", _scalar, ONE_OF),
        (4 + 2 * _index, f"{_scalar}_list", f"{_scalar.capitalize()}List", ONE_OF),
    ]
_MESSAGES = {
    **{f"{scalar.capitalize()}List": [(1, "values", scalar, "many")] for scalar in SCALARS},
    "AttributeProto": _ATTRIBUTE,
    "GlobalMetadata": [(1, "version", "bytes", ""), (2, "attr", "AttributeProto", "many")],
    "IOInfo": [(1, "values", "string", ""), (2, "shapes", "string", ""), (3, "types", "string", "")],
    "Node": [
        (1, "id", "uint64", ""), (2, "name", "string", ""), (3, "type", "int32", ""),
        (4, "ctrl_deps", "uint64", "many"), (5, "data_deps", "uint64", "many"),
        (6, "start_time_micros", "uint64", ""), (7, "duration_micros", "uint64", ""),
        (8, "inputs", "IOInfo", ""), (9, "outputs", "IOInfo", ""), (10, "attr", "AttributeProto", "many"),
    ],
}  # fmt: skip


@cache
def messages() -> dict[str, Any]:
    """The message classes GlobalMetadata, Node, AttributeProto.  InputError when protobuf is missing."""
    return message_classes("Chakra files", _MESSAGES)
