"""Chakra nodes as programs of a graph: in an order that their dependencies allow, on streams, in groups."""

from __future__ import annotations

from array import array
from collections import defaultdict
from dataclasses import field
from typing import Any

from simcore.collectives.kinds import kind_of
from simcore.errors import InputError
from simcore.graph import Graph
from simcore.graph.builder import GraphBuilder
from simcore.graph.kinds import COMMUNICATION, ON_GPU, P2P
from simcore.graph.ops import OP_COLUMNS, EdgeKind, OpKind
from simcore.outside import quoted
from simcore.records import dataclass
from workloads.imports.chakra.alike import Meanings, RankFile, Tails, alike_groups
from workloads.imports.chakra.order import LeftAside, in_order
from workloads.imports.chakra.read import ChakraNode, read_nodes
from workloads.imports.chakra.schema import COLLECTIVES, NodeType
from workloads.imports.op_columns import OpColumns

_COMMUNICATION = (NodeType.COMM_COLL, NodeType.COMM_SEND, NodeType.COMM_RECV)
_MAX_BYTES = 1 << 50
_MAX_NUMBER = 1 << 62
#: Columns that are read from attributes of their name, and their types.
_READ = {
    name: str if what == "str" else int
    for name, (what, _) in OP_COLUMNS.items()
    if name not in ("name", "kind", "group", "forward_op", "recorded_ps", "flops", "num_bytes", "stream")
}
_OF_TYPE = {
    NodeType.COMM_COLL: OpKind.COLLECTIVE, NodeType.COMM_SEND: OpKind.SEND, NodeType.COMM_RECV: OpKind.RECV,
    NodeType.MEM_LOAD: OpKind.MEMCPY, NodeType.MEM_STORE: OpKind.MEMCPY,
}  # fmt: skip
_KINDS = {int(kind): kind for kind in OpKind}
_ALL = "all ranks"
_ALONE = "alone"
#: What the graph has no collective for, and what moves the same bytes.
_NEAREST = {"gather": "all_to_all", "scatter": "all_to_all"}


@dataclass
class RankNodes:
    """A program's nodes in launch order, which wait to be written, and what is kept of them.

    ``placed`` are GPU nodes: their row of the template, duration (ps, -1: not recorded), and whether they
    communicate; ``starts`` (ps of any clock, -1: not recorded) and ``ids`` are theirs, too.
    """

    label: str
    number: int
    nodes: list[ChakraNode]
    left_aside: LeftAside = field(default_factory=LeftAside)
    placed: array[int] = field(default_factory=lambda: array("q"))
    starts: list[int] = field(default_factory=list)
    ids: array[int] = field(default_factory=lambda: array("Q"))
    guessed_streams: bool = False
    guessed_groups: bool = False
    stood_in: int = 0
    after_sends: int = 0

    @classmethod
    def of(cls, file: RankFile) -> RankNodes:
        """Read the nodes of a file and order them.

        Errors: InputError as :func:`read_nodes`; for two nodes of one id, data that comes from none, a
        circle, nothing that runs.
        """
        nodes = list(read_nodes(file.source))
        if all(node.type in (NodeType.METADATA, NodeType.INVALID) for node in nodes):
            raise InputError(f"{file.label}: no node that computes or communicates: nothing to replay")
        return cls(file.label, file.number, *in_order(file.label, nodes))


def build_graph(
    files: list[RankFile], groups: dict[str, tuple[int, ...]], tails: Tails
) -> tuple[Graph, list[RankNodes]]:
    """One program for ranks that play the same; what each rank plays, once written.

    Ranks that no file is of take no part in groups.  A rank of which times were recorded has a program, and
    a template, of its own, of its number.
    Errors: InputError for a bad file, a group without the rank that uses it, absurd sizes, an unknown peer.
    """
    build = GraphBuilder(len(files), name="chakra", framework="recorded")
    place = {file.number: index for index, file in enumerate(files)}
    known = dict(groups)
    families: dict[str, str] = {}
    for file in files:
        known |= file.groups
        families |= file.families
    families |= alike_groups(files, tails, known, families)
    symbols = _declare(build, known, families, place)
    meanings = Meanings(tails, symbols, known, place)
    columns = OpColumns()
    programs: dict[object, int] = {}
    ranks_of: list[list[int]] = []
    played: list[RankNodes] = []
    for index, file in enumerate(files):
        program = meanings.program(file)
        if program not in programs:
            rank = RankNodes.of(file)
            timed = any(node.start_ps >= 0 for node in rank.nodes)
            programs[index if program is None or timed else program] = len(ranks_of)
            ranks_of.append([index])
            _NodeWriter(rank, index, columns, symbols, known, place).write()
        else:
            ranks_of[programs[program]].append(index)
            rank = played[ranks_of[programs[program]][0]]
        played.append(rank)
    return columns.graph(build.build(), ranks_of), played


def _declare(
    build: GraphBuilder, known: dict[str, tuple[int, ...]], families: dict[str, str], place: dict[int, int]
) -> dict[str, str]:
    """Symbols of groups by name; groups of equal size and description are one family."""
    build.group(_ALL, explicit=(tuple(range(len(place))),))
    build.group(_ALONE, dims=((1, 1),), base_dims=((len(place), 1),))
    members: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    symbols: dict[str, str] = {}
    for name, ranks in known.items():
        present = tuple(place[rank] for rank in ranks if rank in place)
        if not present:
            continue
        family = families.get(name) or f"group {name}"
        taken = {rank for group in members[family] for rank in group}
        if members[family] and (len(members[family][0]) != len(present) or taken & set(present)):
            family = f"{family} #{name}"
        members[family].append(present)
        symbols[name] = family
    for family, groups in members.items():
        build.group(family, explicit=groups)
    return symbols


@dataclass
class _NodeWriter:
    """Writes the nodes of one rank into its template."""

    rank: RankNodes
    index: int
    ops: OpColumns
    symbols: dict[str, str]
    known: dict[str, tuple[int, ...]]
    place: dict[int, int]
    row: dict[int, int] = field(default_factory=dict)
    stream_of: dict[int, str] = field(default_factory=dict)
    #: What nodes that are no ops depend on.
    through: dict[int, tuple[int, ...]] = field(default_factory=dict)
    #: What sends depend on.  Theirs is done when it has left, ours when it has arrived.
    sends: dict[int, tuple[int, ...]] = field(default_factory=dict)
    #: Row, kind and stream of the first op of its kind.
    first_of: dict[tuple[object, ...], tuple[int, OpKind, str]] = field(default_factory=dict)

    def write(self) -> None:
        """All nodes, in launch order."""
        self.ops.template(f"rank {self.rank.number}")
        first = self.ops.count
        nodes, self.rank.nodes = self.rank.nodes, []
        for node in nodes:
            if node.type in (NodeType.METADATA, NodeType.INVALID):
                self.through[node.id] = self._sources(node.data_deps)
                continue
            self._write(node, first)

    def _sources(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        if not self.through:
            return ids
        found: dict[int, None] = {}
        for source in ids:
            found |= dict.fromkeys(self.through.get(source, (source,)))
        return tuple(found)

    def _past_sends(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        """What a message waits for: in a ring each would wait for the receive that comes after its send."""
        if self.sends.keys().isdisjoint(ids):
            return ids
        self.rank.after_sends += 1
        found: dict[int, None] = {}
        for source in ids:
            found |= dict.fromkeys(self.sends.get(source, (source,)))
        return tuple(found)

    def _write(self, node: ChakraNode, first: int) -> None:
        given = node.attributes
        told = given.get("op_kind")
        kind = _KINDS.get(told) if type(told) is int else None
        if kind is None:
            on_host = bool(given.get("is_cpu_op", False))
            # A call of the framework that communicates is the host's own time: its kernel is another node.
            on_gpu = _OF_TYPE.get(node.type, OpKind.COMPUTE)
            kind = OpKind.HOST if on_host else on_gpu
        alike = (
            (node.kind, node.name, node.duration_ps, node.type, given.get("batch"))
            if node.kind >= 0
            else None
        )
        columns: dict[str, object] = {}
        if alike in self.first_of:
            same, kind, stream = self.first_of[alike]
        else:
            same, columns = -1, self._columns(node, kind)
            if columns.pop("alone", False):
                kind, alike = OpKind.COLLECTIVE, None  # counted one by one
            stream = str(columns["stream"])
        sources = self._sources(node.data_deps)
        if told is None and kind in P2P:
            sources = self._past_sends(sources)
            if kind == OpKind.SEND:
                self.sends[node.id] = sources
        if told is None:
            # What the stream orders by itself needs no wait; the host waits where it depends on the GPU.
            waits = [s for s in sources if s in self.row and self.stream_of[s] not in (stream, "host")]
            data: list[int] = []
            if kind == OpKind.HOST and waits:
                wait = {"name": "waits for the GPU", "stream": "host", "blocking": 1}
                self._edges(self.ops.op(OpKind.SYNC, wait), EdgeKind.WAIT, waits)
                waits = []
            if kind == OpKind.HOST and node.duration_ps <= 0:
                self.through[node.id] = self._sources(node.data_deps)
                return
        else:
            implied, only, also = (
                self._field(node, key, (), tuple, "list of nodes")
                for key in ("implied_deps", "data_only_deps", "also_data_deps")
            )
            kept = [s for s in sources if s not in implied and s in self.row]
            waits = [s for s in kept if s not in only]
            data = [s for s in kept if s in only or s in also]
        row = self.row[node.id] = self.ops.again(same) if same >= 0 else self.ops.op(kind, columns)
        if alike is not None:
            self.first_of.setdefault(alike, (row, kind, stream))
        self._edges(row, EdgeKind.DATA, data)
        self._edges(row, EdgeKind.WAIT, waits)
        self.stream_of[node.id] = stream
        if kind in ON_GPU:
            self.rank.placed.extend((row - first, node.duration_ps, node.type in _COMMUNICATION))
            self.rank.starts.append(node.start_ps)
            self.rank.ids.append(node.id)

    def _edges(self, row: int, kind: EdgeKind, sources: list[int]) -> None:
        if sources:
            self.ops.edges(row, kind, [self.row[source] for source in sources])

    def _columns(self, node: ChakraNode, kind: OpKind) -> dict[str, object]:
        given = node.attributes
        columns: dict[str, object] = {"name": node.name, "recorded_ps": node.duration_ps}
        for name, value in given.items():
            what = _READ.get(name)
            if what is not None:
                columns[name] = self._field(node, name, 0, what, "text" if what is str else "whole number")
                if what is int and abs(value) > _MAX_NUMBER:
                    raise self._absurd(node, name, value)
        columns["flops"] = self._size(node, "num_ops", 1 << 62)
        size = self._size(node, "comm_size" if node.type in _COMMUNICATION else "tensor_size", _MAX_BYTES)
        if kind == OpKind.MEMCPY and "bytes_read" not in given:
            columns |= {"bytes_read": size, "bytes_written": size, "op_class": "copy"}
        elif kind == OpKind.COMPUTE and size and "bytes_read" not in given and "bytes_written" not in given:
            columns["bytes_read"] = size
        if kind in COMMUNICATION:
            columns |= self._communication(node, kind, size)
        if isinstance(given.get("stream"), str):
            columns["stream"] = given["stream"]
        else:
            self.rank.guessed_streams = self.rank.guessed_streams or "stream" not in given
            default = {OpKind.HOST: "host", OpKind.MEMCPY: "copy"}.get(kind, "compute")
            if kind in COMMUNICATION:
                default = (
                    f"comm {columns['group']} {node.type.name if kind != OpKind.COLLECTIVE else ''}".strip()
                )
            number = given.get("stream")
            columns["stream"] = str(number) if type(number) is int and kind != OpKind.HOST else default
        return columns

    def _communication(self, node: ChakraNode, kind: OpKind, size: int) -> dict[str, object]:
        given = node.attributes
        name = self._field(node, "pg_name" if "pg_name" in given else "comm_group", "", (str, int), "name")
        name = str(name)
        where = f"{self.rank.label}: node {node.id} ({node.name})"
        symbol = self.symbols.get(name)
        if name in self.known and self.rank.number not in self.known[name]:
            raise InputError(
                f"{where}: rank {self.rank.number} is not in process group {name!r}: {list(self.known[name])}"
            )
        if symbol is None:
            self.rank.guessed_groups = True
            symbol = _ALL
        members = [self.place[r] for r in self.known.get(name, tuple(self.place)) if r in self.place]
        columns: dict[str, object] = {"group": symbol, "num_bytes": size}
        if kind == OpKind.COLLECTIVE:
            code = given.get("comm_type", -1)
            if not (type(code) is int and 0 <= code < len(COLLECTIVES)):
                raise InputError(f"{where}: comm_type {code!r} is no collective of Chakra's")
            collective = COLLECTIVES[code]
            if kind_of(collective).gives_part:
                columns["num_bytes"] = size * len(members)
            columns["collective"] = given.get("collective", _NEAREST.get(collective, collective))
        else:
            key = "comm_dst" if kind == OpKind.SEND else "comm_src"
            peer = given.get(key)
            if (
                type(peer) is int
                and peer >= 0
                and peer not in self.place
                and peer in self.known.get(name, (peer,))
            ):
                # The other end was not recorded: it lasts what was recorded, and waits for nobody.
                self.rank.stood_in += 1
                columns |= {"group": _ALONE, "alone": True, "collective": "all_to_all"}
                return columns
            if peer not in self.place or self.place[peer] not in members:
                raise InputError(f"{where}: {key} {peer!r} is no rank of the files in its group")
            delta = members.index(self.place[peer]) - members.index(self.index)
            columns["peer_delta"] = delta % len(members)
        exact = given.get("comm_bytes")
        if type(exact) is int and 0 <= exact < _MAX_BYTES:
            columns["num_bytes"] = exact
        return columns

    def _size(self, node: ChakraNode, key: str, most: int) -> int:
        value: int | float = self._field(node, key, 0, (int, float), "size")
        if not 0 <= value <= most:  # NaN, too
            raise self._absurd(node, key, value)
        return int(value)

    def _field(self, node: ChakraNode, key: str, default: Any, kinds: Any, what: str) -> Any:
        """An attribute, which must be of a type; ``default`` where there is none."""
        value = node.attributes.get(key, default)
        if not isinstance(value, kinds):
            where = f"{self.rank.label}: node {node.id} ({node.name[:80]})"
            raise InputError(f"{where}: {key} is {quoted(value)}, no {what}")
        return value

    def _absurd(self, node: ChakraNode, key: str, value: float) -> InputError:
        return InputError(f"{self.rank.label}: node {node.id} ({node.name[:80]}): {key} {value} is absurd")
