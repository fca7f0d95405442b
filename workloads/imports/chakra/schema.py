"""Chakra's protobuf messages, built at run time: no generated code, any protobuf release.

Source: MLCommons Chakra, schema/protobuf/et_def.proto.  Fields of later versions (storage nodes) are skipped
by protobuf itself; the metadata's version is read as bytes, for older files have an attribute in its place.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cache
from typing import Any, Final

from simcore.errors import InputError

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

_SCALARS = (
    "double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64",
    "sfixed32", "sfixed64", "bool", "string", "bytes",
)  # fmt: skip


@cache
def messages() -> dict[str, Any]:
    """The message classes GlobalMetadata, Node, AttributeProto.  InputError when protobuf is missing."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError:
        raise InputError("Chakra files need the protobuf package: pip install 'stepsim[chakra]'") from None
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="stepsim/chakra_et_def.proto", package="stepsim.chakra", syntax="proto3"
    )

    def add(message: Any, name: str, number: int, kind: str, *, many: bool = False, oneof: int = -1) -> None:
        scalar = kind in _SCALARS or kind == "enum"
        made = message.field.add(
            name=name, number=number, label=field.LABEL_REPEATED if many else field.LABEL_OPTIONAL
        )
        # Enumerations are integers on the wire: unknown values then stay readable.
        made.type = getattr(field, f"TYPE_{kind.upper()}" if scalar else "TYPE_MESSAGE")
        if not scalar:
            made.type_name = f".stepsim.chakra.{kind}"
        if oneof >= 0:
            made.oneof_index = oneof

    attribute = file.message_type.add(name="AttributeProto")
    attribute.oneof_decl.add(name="value")
    add(attribute, "name", 1, "string")
    add(attribute, "doc_string", 2, "string")
    for index, scalar in enumerate(_SCALARS):
        holder = f"{scalar.capitalize()}List"
        add(file.message_type.add(name=holder), "values", 1, scalar, many=True)
        add(attribute, f"{scalar}_val", 3 + 2 * index, scalar, oneof=0)
        add(attribute, f"{scalar}_list", 4 + 2 * index, holder, oneof=0)
    metadata = file.message_type.add(name="GlobalMetadata")
    add(metadata, "version", 1, "bytes")
    add(metadata, "attr", 2, "AttributeProto", many=True)
    values = file.message_type.add(name="IOInfo")
    for number, name in enumerate(("values", "shapes", "types"), 1):
        add(values, name, number, "string")
    node = file.message_type.add(name="Node")
    for number, (name, kind, many) in enumerate(
        (
            ("id", "uint64", False), ("name", "string", False), ("type", "int32", False),
            ("ctrl_deps", "uint64", True), ("data_deps", "uint64", True),
            ("start_time_micros", "uint64", False), ("duration_micros", "uint64", False),
            ("inputs", "IOInfo", False), ("outputs", "IOInfo", False), ("attr", "AttributeProto", True),
        ),
        1,
    ):  # fmt: skip
        add(node, name, number, kind, many=many)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    names = ("GlobalMetadata", "Node", "AttributeProto")
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"stepsim.chakra.{name}"))
        for name in names
    }
