"""The stream of a Chakra file: messages, each after its length (a varint): the metadata, then nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from sys import intern
from typing import IO, Any

from simcore.errors import InputError
from simcore.outside import limits, over
from simcore.records import dataclass
from simcore.units import PS_PER_US
from workloads.imports.chakra.schema import MAX_MESSAGE_BYTES, NodeType, messages
from workloads.imports.files import TraceFile, opened
from workloads.imports.recorded import MAX_SPAN_S

VERSION = "0.0.4"


@dataclass(frozen=True, slots=True)
class ChakraNode:
    """A node with its attributes as Python values.  Times in ps, -1 where not recorded.

    ``kind`` numbers the attributes that it shares with others of its file (Note [Rows of a graph]), -1: none.
    """

    id: int
    name: str
    type: NodeType
    ctrl_deps: tuple[int, ...] = ()
    data_deps: tuple[int, ...] = ()
    start_ps: int = -1
    duration_ps: int = -1
    input_values: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    kind: int = -1


def read_nodes(source: TraceFile) -> Iterator[ChakraNode]:
    """The nodes of a file, in its order.

    Errors: InputError with file and byte for a stream that is cut, a message that is none of Chakra's, times
    beyond a week.
    """
    kind = messages()["Node"]
    rows = _Rows()
    with opened(source) as handle:
        reader = _Delimited(source.label, handle)
        for data in reader.nodes():
            at = data.find(_OF_ROW)
            number = rows.number(data[at:]) if at > 0 else -1
            message = rows.parsed(data[:at]) if number >= 0 else None
            if message is None:
                message = reader.parsed(kind, data)
                yield _node(reader, message, attributes_of(message))
            else:
                yield _node(reader, message, attributes_of(message) | rows.attributes[number], number)


def read_messages(source: TraceFile) -> Iterator[bytes]:
    """The messages of a file's nodes as bytes.  Errors: InputError for a stream that is cut or none."""
    with opened(source) as handle:
        yield from _Delimited(source.label, handle).nodes()


def write_nodes(handle: IO[bytes], nodes: Iterable[ChakraNode]) -> int:
    """Write metadata and ``nodes``; returns their number."""
    return write_messages(handle, (delimited(node_bytes(node)) for node in nodes))


def write_messages(handle: IO[bytes], nodes: Iterable[bytes]) -> int:
    """Write metadata and ``nodes``, each after its length; returns their number."""
    handle.write(delimited(messages()["GlobalMetadata"](version=VERSION.encode()).SerializeToString()))
    count = 0
    for count, node in enumerate(nodes, start=1):  # noqa: B007
        handle.write(node)
    return count


def node_bytes(node: ChakraNode) -> bytes:
    """A node's message; what :func:`attribute_bytes` gives may follow it, as more attributes."""
    message = messages()["Node"](
        id=node.id, name=node.name, type=int(node.type), ctrl_deps=node.ctrl_deps, data_deps=node.data_deps,
        duration_micros=max(0, round(node.duration_ps / PS_PER_US)),
        start_time_micros=max(0, round(node.start_ps / PS_PER_US)),
    )  # fmt: skip
    if node.input_values:
        message.inputs.values = node.input_values
        message.inputs.shapes, message.inputs.types = "[]", "['String']"
    data: bytes = message.SerializeToString()
    return data + attribute_bytes(node.attributes) if node.attributes else data


def attribute_bytes(attributes: Mapping[str, Any]) -> bytes:
    """Attributes as a part of a node's message."""
    message = messages()["Node"]()
    for name, value in attributes.items():
        attribute = message.attr.add(name=name)
        if isinstance(value, bool):
            attribute.bool_val = value
        elif isinstance(value, int):
            attribute.int64_val = value
        elif isinstance(value, str):
            attribute.string_val = value
        else:
            attribute.uint64_list.values.extend(value)
    data: bytes = message.SerializeToString()
    return data


def delimited(data: bytes) -> bytes:
    """A message after its length."""
    length, prefix = len(data), bytearray()
    while length > 127:
        prefix.append(length & 127 | 128)
        length >>= 7
    return bytes((*prefix, length)) + data


class _Delimited:
    """Cuts a stream into messages and knows where it stands."""

    def __init__(self, label: str, handle: IO[bytes]) -> None:
        self.label = label
        self._handle = handle
        self.at = 0
        from google.protobuf.message import DecodeError

        self._decode_error = DecodeError

    def nodes(self) -> Iterator[bytes]:
        """All messages behind the metadata, which must be there."""
        found = self._messages()
        first = next(found, None)
        if first is None:
            raise InputError(f"{self.label}: the file is empty")
        self.parsed(messages()["GlobalMetadata"], first)
        most = limits().events
        for count, data in enumerate(found):
            if count >= most:
                raise over("events", 0, self.label)
            yield data

    def _messages(self) -> Iterator[bytes]:
        text, at, dropped = b"", 0, 0
        while True:
            begin = at
            try:
                length = text[at]
                at += 1
                if length > 127:
                    length, shift = length & 127, 7
                    while True:
                        byte = text[at]
                        at += 1
                        length |= (byte & 127) << shift
                        shift += 7
                        if byte < 128:
                            break
                        if shift > 63:
                            self.at = dropped + at
                            raise self.fail("no length of a message: not a Chakra file")
                if length > MAX_MESSAGE_BYTES:
                    self.at = dropped + at
                    raise self.fail(f"a message of {length:,} bytes: not a Chakra file, or damaged")
                missing = length - (len(text) - at)
            except IndexError:
                length = missing = -1
            if length >= 0 and missing <= 0:
                at += length
                self.at = dropped + at
                yield text[at - length : at]
                continue
            more = self._handle.read(max(_CHUNK_BYTES, missing))
            if not more:
                self.at = dropped + at
                if begin == len(text):
                    return
                if length < 0:
                    raise self.fail("the file ends within a length (truncated?)")
                there = length - missing
                raise self.fail(f"a message of {length:,} bytes, of which {there:,} are there (truncated?)")
            dropped += begin
            text, at = text[begin:] + more, 0

    def parsed(self, kind: Any, data: bytes) -> Any:
        """``data`` as a message."""
        message = kind()
        try:
            message.ParseFromString(data)
        except self._decode_error as error:
            raise self.fail(f"{error}: not a Chakra file, or damaged") from None
        return message

    def fail(self, reason: str) -> InputError:
        """The error for what stands at the current position."""
        return InputError(f"{self.label}: byte {self.at:,}: {reason}")


_CHUNK_BYTES = 1 << 20
_OF_ROW = b"R\x0b\n\x07op_kind"  # the attribute with which our exports begin what holds for a row
_TYPES = {int(kind): kind for kind in NodeType}
_MAX_US = MAX_SPAN_S * 10**6


class _Rows:
    """What ends of messages say that stand at many nodes, each decoded once.

    Note [Rows of a graph]
        Our exports write of each node what it alone has (its id, dependencies), then what holds for all ops
        of its row of the op table, beginning with ``op_kind``: a step's microbatches repeat a few rows.  A
        message may be cut there, for two halves that are messages say together what the whole does.
    """

    def __init__(self) -> None:
        from google.protobuf.message import DecodeError

        self.attributes: list[dict[str, Any]] = []
        self._number: dict[bytes, int] = {}
        self._kind, self._error = messages()["Node"], DecodeError

    def parsed(self, data: bytes) -> Any:
        """A half of a message; None where it is none."""
        message = self._kind()
        try:
            message.ParseFromString(data)
        except self._error:
            return None
        return message

    def number(self, tail: bytes) -> int:
        """The number of an end of a message; -1 for one that says more than attributes, or is none."""
        found = self._number.get(tail)
        if found is None:
            found, message = -1, self.parsed(tail)
            if message is not None and [told.name for told, _ in message.ListFields()] == ["attr"]:
                found = len(self.attributes)
                self.attributes.append(attributes_of(message))
            self._number[tail] = found
        return found


def attributes_of(message: Any) -> dict[str, Any]:
    """The attributes of a node's message as Python values."""
    attributes: dict[str, Any] = {}
    for attribute in message.attr:
        kind = attribute.WhichOneof("value")
        if kind is not None:
            value = getattr(attribute, kind)
            attributes[intern(attribute.name)] = tuple(value.values) if kind.endswith("_list") else value
    return attributes


def _node(reader: _Delimited, message: Any, attributes: dict[str, Any], kind: int = -1) -> ChakraNode:
    if message.duration_micros > _MAX_US:
        raise reader.fail(f"node {message.id} lasts {message.duration_micros} us, more than a week")
    exact = attributes.get("recorded_ps")
    if type(exact) is int and not -1 <= exact <= _MAX_US * PS_PER_US:
        raise reader.fail(f"node {message.id} lasts {exact} ps, more than a week")
    duration = exact if type(exact) is int else message.duration_micros * PS_PER_US or -1
    return ChakraNode(
        message.id, intern(message.name), _TYPES.get(message.type, NodeType.INVALID),
        tuple(message.ctrl_deps), tuple(message.data_deps),
        message.start_time_micros * PS_PER_US if message.start_time_micros else -1, duration,
        message.inputs.values, attributes, kind,
    )  # fmt: skip
