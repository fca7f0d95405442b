"""Protobuf messages built at run time: no generated code, any protobuf release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from simcore.errors import InputError

SCALARS: Final = (
    "double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64",
    "sfixed32", "sfixed64", "bool", "string", "bytes",
)  # fmt: skip
ONE_OF: Final = "value"

#: A field of a message: its number, name and kind (a scalar, or another message), and "many" for a list or
#: ``ONE_OF`` for one of those of which a message has one.  Enumerations are int32: on the wire they are, and
#: unknown values stay readable.  Fields that a file has beyond these are skipped by protobuf itself.
Field = tuple[int, str, str, str]


def message_classes(what: str, messages: Mapping[str, Sequence[Field]]) -> dict[str, Any]:
    """Classes of ``messages`` by name; ``what`` they are of, in messages of errors.

    Errors: InputError when protobuf is missing.
    """
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError:
        raise InputError(f"{what} need the protobuf package: pip install protobuf") from None
    kinds = descriptor_pb2.FieldDescriptorProto
    package = f"stepsim.{what.replace(' ', '_').lower()}"
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        if any(how == ONE_OF for *_, how in fields):
            message.oneof_decl.add(name=ONE_OF)
        for number, field, kind, how in fields:
            made = message.field.add(name=field, number=number)
            made.label = kinds.LABEL_REPEATED if how == "many" else kinds.LABEL_OPTIONAL
            made.type = getattr(kinds, f"TYPE_{kind.upper()}" if kind in SCALARS else "TYPE_MESSAGE")
            if kind not in SCALARS:
                made.type_name = f".{package}.{kind}"
            if how == ONE_OF:
                made.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in messages
    }
