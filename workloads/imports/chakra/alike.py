"""Which ranks of a set of Chakra files play the same, told by messages' bytes before any is decoded.

Note [Ranks that play the same]
    A job's files repeat themselves: ranks that run one program differ in their groups' names, in the ranks
    that they send to, and in nothing else.  Of each message, what a rank does for itself (its *head*) goes
    into a digest of the file; the attributes from the first on that may name groups or ranks (its *tail*) are
    few, and numbered.  Files of one digest, whose tails mean the same by position (the same family of groups,
    the same place further on in it), are one program: one of them is decoded, and stands for all.

    Groups that nothing describes are a family where files of one digest name them at the same place, if they
    are of one size.  That is no guess: a rank is in one group of a family, the one that it named.

    A message may be cut where a field begins: two halves that are messages by themselves say together what
    the whole does (protobuf, "last one wins, repeated fields are appended").
"""

from __future__ import annotations

import ast
import json
import re
from array import array
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

import numpy as np

from simcore.graph.ops import IntArray
from simcore.records import dataclass
from workloads.imports.chakra.read import attributes_of, read_messages
from workloads.imports.chakra.schema import NodeType, messages
from workloads.imports.files import TraceFile

#: An attribute that may name a group or a rank, from its name on.
_NAMES_OTHERS: Final = re.compile(rb"\x0a.(?:pg_name|comm_group|comm_src|comm_dst|comm_tag)", re.DOTALL)
_ATTRIBUTE: Final = 0x52  # the tag of a node's attribute: field 10, with a length
_DECLARES: Final = "process_group"
_ENDS: Final = ("comm_src", "comm_dst")


class Tails:
    """Ends of messages, numbered over all files of a set."""

    def __init__(self) -> None:
        self._number: dict[bytes, int] = {}
        self._attributes: list[dict[str, Any] | None] = []

    def number(self, tail: bytes) -> int:
        """The number of a tail."""
        return self._number.setdefault(tail, len(self._number))

    def attributes(self, number: int) -> dict[str, Any] | None:
        """What a tail says; None if it is no end of a message, or says more than attributes."""
        if number >= len(self._attributes):
            for tail in list(self._number)[len(self._attributes) :]:
                self._attributes.append(_only_attributes(tail))
        return self._attributes[number]


def _only_attributes(tail: bytes) -> dict[str, Any] | None:
    from google.protobuf.message import DecodeError

    message = messages()["Node"]()
    try:
        message.ParseFromString(tail)
    except DecodeError:
        return None
    if [field.name for field, _ in message.ListFields()] != ["attr"]:
        return None
    return attributes_of(message)


@dataclass(frozen=True)
class RankFile:
    """One file as its bytes tell it: the groups that it declares, the numbers of its tails in their order.

    ``digest`` is of everything else; None where the file stands for itself alone.
    """

    source: TraceFile
    number: int
    groups: dict[str, tuple[int, ...]]
    families: dict[str, str]
    digest: bytes | None
    tails: IntArray

    @property
    def label(self) -> str:
        """The file as a user would name it."""
        return self.source.label


def outline(source: TraceFile, number: int, tails: Tails, checked: set[bytes]) -> RankFile:
    """The file of rank ``number``.  ``checked`` are digests of files whose messages may be cut as they were.

    Errors: InputError for a stream that is cut or damaged.
    """
    groups: dict[str, tuple[int, ...]] = {}
    families: dict[str, str] = {}
    heads: list[bytes] = []
    found = array("q")
    cut: list[int] = []
    whole = True
    search, declares = _NAMES_OTHERS.search, _DECLARES.encode()
    for data in read_messages(source):
        if b"comm_" in data or b"pg_name" in data:
            names = search(data)
            if names is not None:
                at = names.start() - 2
                whole &= at > 0 and data[at] == _ATTRIBUTE
                found.append(tails.number(data[at:]))
                cut.append(len(heads))
                data = data[:at]
        if declares in data:
            data = _declaration(data, groups, families)
        heads.append(data)
    lengths = array("q", map(len, heads)).tobytes()
    digest = blake2b(lengths + b"".join(heads)).digest()
    if whole and digest not in checked:
        whole = all(_is_message(heads[at]) for at in cut)
        if whole:
            checked.add(digest)
    return RankFile(
        source, number, groups, families, digest if whole else None, np.array(found, dtype=np.int64)
    )


def _is_message(data: bytes) -> bool:
    from google.protobuf.message import DecodeError

    try:
        messages()["Node"]().ParseFromString(data)
    except DecodeError:
        return False
    return True


def _declaration(data: bytes, groups: dict[str, tuple[int, ...]], families: dict[str, str]) -> bytes:
    """``data`` without the groups that it declares, if any, which are added to ``groups``."""
    if not _is_message(data):
        return data  # said when it is decoded
    message = messages()["Node"].FromString(data)
    if message.type != int(NodeType.METADATA) or _DECLARES not in message.name:
        return data
    for entry in _declared(message.inputs.values):
        name = str(entry.get("pg_name", ""))
        groups[name] = tuple(entry["ranks"])
        families[name] = str(entry.get("pg_desc", ""))
    message.ClearField("inputs")
    kept: bytes = message.SerializeToString(deterministic=True)
    return kept


def _declared(text: str) -> list[dict[str, Any]]:
    try:
        values = ast.literal_eval(text)
        found = json.loads(values[0])
    except (ValueError, SyntaxError, TypeError, IndexError, KeyError, RecursionError, MemoryError):
        return []  # groups are then guessed, and the report says so
    entries = found if isinstance(found, list) else []
    return [
        entry
        for entry in entries
        if isinstance(entry, dict)
        and isinstance(entry.get("ranks"), list)
        and all(type(rank) is int for rank in entry["ranks"])
    ]


def alike_groups(
    files: Sequence[RankFile],
    tails: Tails,
    known: Mapping[str, tuple[int, ...]],
    described: Mapping[str, str],
) -> dict[str, str]:
    """A family for each group that no file describes: a name that groups have in common."""
    first_of: dict[str, str] = {}

    def first(name: str) -> str:
        while (before := first_of.setdefault(name, name)) != name:
            name = before
        return name

    firsts: dict[bytes, RankFile] = {}
    for file in files:
        if file.digest is None:
            continue
        other = firsts.setdefault(file.digest, file)
        if other is file or len(other.tails) != len(file.tails):
            continue
        pairs = np.unique(np.stack((other.tails, file.tails)), axis=1)
        for one, two in pairs[:, pairs[0] != pairs[1]].T.tolist():
            names = [_group_name(tails.attributes(number)) for number in (one, two)]
            sizes = {len(known.get(name, ())) for name in names}
            if len(sizes) == 1 and not any(name in described or name not in known for name in names):
                first_of[first(names[1])] = first(names[0])
    return {name: f"groups like {first(name)}" for name in first_of}


def _group_name(told: Mapping[str, Any] | None) -> str:
    told = told or {}
    return str(told.get("pg_name", told.get("comm_group", "")))


class Meanings:
    """What tails mean to a rank: which family of groups, and how far on in its own group the other end is.

    ``symbols`` are families by the name of a group, ``known`` its ranks, ``place`` the place of each rank
    that there is a file of.
    """

    def __init__(
        self,
        tails: Tails,
        symbols: Mapping[str, str],
        known: Mapping[str, tuple[int, ...]],
        place: Mapping[int, int],
    ) -> None:
        self._tails, self._symbols, self._known = tails, symbols, known
        self._everyone = {rank: at for at, rank in enumerate(place)}
        self._present = {
            name: {rank: at for at, rank in enumerate(r for r in ranks if r in place)}
            for name, ranks in known.items()
        }
        self._number: dict[tuple[object, ...], int] = {}

    def program(self, file: RankFile) -> tuple[bytes, bytes] | None:
        """What files have in common whose ranks play the same; None for one that stands for itself."""
        if file.digest is None:
            return None
        different, at = np.unique(file.tails, return_inverse=True)
        meanings = np.zeros(len(different), dtype=np.int64)
        for place, tail in enumerate(different.tolist()):
            meaning = self._meaning(tail, file.number)
            if meaning is None:
                return None
            meanings[place] = self._number.setdefault(meaning, len(self._number))
        return file.digest, meanings[at].tobytes()

    def _meaning(self, tail: int, rank: int) -> tuple[object, ...] | None:
        """None for what is wrong or not known to hold for other ranks: each such file is read by itself."""
        told = self._tails.attributes(tail)
        if told is None:
            return None
        rest = dict(told)
        also = rest.pop("comm_group", "")
        name = rest.pop("pg_name", also)
        if not isinstance(name, str | int):
            return None
        members = self._present.get(str(name), self._everyone)
        if rank not in members:
            return None
        ends: list[int | None] = []
        for key in _ENDS:
            peer = rest.pop(key, None)
            if peer is not None and peer not in members:
                return None
            ends.append(None if peer is None else (members[peer] - members[rank]) % len(members))
        rest.pop("comm_tag", None)
        what = (self._symbols.get(str(name)), str(name) in self._known, len(members))
        return *what, *ends, tuple(sorted(rest.items()))
