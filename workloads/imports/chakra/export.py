"""Any graph as Chakra files, one per rank, that read back as the same ops, sizes, groups and dependencies."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from simcore.collectives.kinds import kind_of
from simcore.errors import InputError
from simcore.files import whole_folder
from simcore.graph import Graph
from simcore.graph.kinds import COMMUNICATION, ON_HOST, is_communication
from simcore.graph.ops import OP_COLUMNS, OpKind
from workloads.imports.chakra.astra_sim import AstraSimNodes
from workloads.imports.chakra.order import ProgramOrder
from workloads.imports.chakra.read import (
    ChakraNode,
    attribute_bytes,
    delimited,
    node_bytes,
    write_messages,
)
from workloads.imports.chakra.schema import COLLECTIVES, EXPORT, NodeType, messages

#: Columns that are written under Chakra's own names, by op and not by row, or that are the node itself.
_OWN = {"name", "kind", "flops", "num_bytes", "forward_op", "batch"}
_TYPES = {
    OpKind.COLLECTIVE: NodeType.COMM_COLL, OpKind.SEND: NodeType.COMM_SEND, OpKind.RECV: NodeType.COMM_RECV,
    OpKind.MEMCPY: NodeType.MEM_LOAD,
}  # fmt: skip
GROUPS_NODE = "## process_group:init ##"


def export_chakra(
    graph: Graph,
    folder: Path,
    *,
    ranks: Iterable[int] | None = None,
    progress: Callable[[float], None] | None = None,
    astra_sim_ps: Sequence[int] | None = None,
) -> int:
    """Write ``rank.N.et`` for each rank (or only ``ranks``), and ``comm_group.json``; returns the nodes.

    The folder appears whole or not at all, and replaces an export that is there.

    ``data_deps`` holds what must have ended: recorded waits, producers of data, and what streams and
    synchronisations imply (named again in ``implied_deps``; producers without a wait in ``data_only_deps``).
    ``ctrl_deps`` is the host's last own work before the launch.

    ``astra_sim_ps``, how long each row of the op table lasts alone, has nodes written as ASTRA-sim plays them
    (:mod:`~workloads.imports.chakra.astra_sim`); they do not read back as the same ops.
    Errors: InputError for a rank outside the world, a folder that holds something else or cannot be made.
    """
    chosen = sorted(set(range(graph.world_size) if ranks is None else ranks))
    for rank in chosen:
        if not 0 <= rank < graph.world_size:
            raise InputError(f"rank {rank} is outside the world of {graph.world_size} ranks")
    messages()  # nothing is written where protobuf is missing
    numbers: dict[tuple[str, tuple[int, ...]], str] = {}
    for name, group in graph.groups.items():
        for rank in range(graph.world_size):
            if group.contains(rank):
                numbers.setdefault((name, group.ranks_of(rank)), str(len(numbers) + 1))  # ASTRA-sim: 0 is all
    total = 0
    program = -1
    nodes: _ProgramNodes | AstraSimNodes | None = None
    told = _Told(graph, numbers)
    members = {number: list(ranks_of) for (_, ranks_of), number in numbers.items()}
    with whole_folder(folder, EXPORT) as fresh:
        (fresh / "comm_group.json").write_text(json.dumps(members), encoding="utf-8")
        for done, rank in enumerate(chosen):
            if nodes is None or graph.program_of_rank[rank] != program:  # ranks of a program mostly follow
                program = int(graph.program_of_rank[rank])  # one another
                order = ProgramOrder.of(graph, program)
                if astra_sim_ps is None:
                    nodes = _ProgramNodes(graph, order, told)
                else:
                    nodes = AstraSimNodes(graph, order, numbers, astra_sim_ps)
            with (fresh / f"rank.{rank}.et").open("wb") as handle:
                total += write_messages(handle, nodes.of_rank(rank))
            if progress is not None:
                progress((done + 1) / len(chosen))
    return total


class _Told:
    """What nodes say of rows of the op table, as messages' bytes: the same for all ops of a row."""

    def __init__(self, graph: Graph, numbers: dict[tuple[str, tuple[int, ...]], str]) -> None:
        self.numbers = numbers
        self._graph = graph
        self._of_row: dict[int, bytes] = {}

    def of_row(self, row: int) -> bytes:
        """Attributes that hold on every rank."""
        found = self._of_row.get(row)
        if found is None:
            found = self._of_row[row] = attribute_bytes(self._attributes(row))
        return found

    def of_rank(self, row: int, rank: int) -> bytes:
        """Attributes of a row that communicates, as ``rank`` does it: with whom, and how much it puts in."""
        ops = self._graph.ops
        kind = OpKind(int(ops.kind[row]))
        members = self._graph.groups[ops.group[row]].ranks_of(rank)
        found: dict[str, Any] = {"pg_name": self.numbers[ops.group[row], members]}
        size = int(ops.num_bytes[row])
        if kind == OpKind.COLLECTIVE:  # Chakra counts what a rank puts in: of an all_gather its share.
            size = kind_of(ops.collective[row]).given_bytes(size, len(members))
        else:
            peer = members[(members.index(rank) + int(ops.peer_delta[row])) % len(members)]
            ends = (rank, peer) if kind == OpKind.SEND else (peer, rank)
            found["comm_src"], found["comm_dst"], found["comm_tag"] = *ends, int(found["pg_name"])
        return attribute_bytes({**found, "comm_size": size})

    def _attributes(self, row: int) -> dict[str, Any]:
        ops = self._graph.ops
        kind = OpKind(int(ops.kind[row]))
        found: dict[str, Any] = {"op_kind": int(kind), "is_cpu_op": kind in ON_HOST}
        for name, (what, default) in OP_COLUMNS.items():
            value = getattr(ops, name)[row]
            value = str(value) if what == "str" else int(value)
            if name not in _OWN and (value != default or name == "stream"):
                found[name] = value
        if kind == OpKind.COMPUTE:
            found["num_ops"] = int(ops.flops[row])
            found["tensor_size"] = int(ops.bytes_read[row] + ops.bytes_written[row])
        elif kind == OpKind.MEMCPY:
            found["tensor_size"] = int(ops.bytes_read[row])
        if kind in COMMUNICATION:
            found["comm_bytes"] = int(ops.num_bytes[row])
        if kind == OpKind.COLLECTIVE:
            collective = ops.collective[row]
            if collective not in COLLECTIVES:
                raise InputError(f"collective {collective!r}: Chakra has no word for it")
            found["comm_type"] = COLLECTIVES.index(collective)
        return found


class _ProgramNodes:
    """What the ranks of one program have in common."""

    def __init__(self, graph: Graph, order: ProgramOrder, told: _Told) -> None:
        self.graph = graph
        self._told = told
        self._order = order
        self.rows = order.rows
        meets = is_communication(graph.ops.kind[order.rows]).tolist()
        #: Messages by op; of those that differ from rank to rank what is the same, without its length.
        self._messages = [self._message(op) for op in range(len(self.rows))]
        self._differ = [(op, row) for op, (row, one) in enumerate(zip(self.rows, meets, strict=True)) if one]
        for op, one in enumerate(meets):
            if not one:
                self._messages[op] = delimited(self._messages[op])

    def of_rank(self, rank: int) -> list[bytes]:
        """Messages of ``rank``: its groups, then its ops in launch order; op ``i`` has the id ``i + 1``."""
        told = [
            {"pg_name": number, "pg_desc": name, "ranks": list(members), "group_size": len(members)}
            for (name, members), number in self._told.numbers.items()
            if rank in members
        ]
        groups = ChakraNode(0, GROUPS_NODE, NodeType.METADATA, input_values=repr([json.dumps(told)]))
        nodes = list(self._messages)
        of_row = {row: self._told.of_rank(row, rank) for row in {row for _, row in self._differ}}
        for op, row in self._differ:
            nodes[op] = delimited(nodes[op] + of_row[row])
        return [delimited(node_bytes(groups)), *nodes]

    def _message(self, op: int) -> bytes:
        """An op's message, as far as all ranks of the program have it in common."""
        ops, row, order = self.graph.ops, self.rows[op], self._order
        waits, data, implied = order.waits.get(op, ()), order.data.get(op, ()), order.implied[op]
        sources = {
            "implied_deps": set(implied) - set(waits) - set(data),
            "data_only_deps": set(data) - set(waits),
            "also_data_deps": set(data) & set(waits),
        }
        attributes: dict[str, Any] = {
            key: tuple(op + 1 for op in sorted(found)) for key, found in sources.items() if found
        }
        if order.batch[op] >= 0:
            attributes["batch"] = order.batch[op]
        host = order.host_before[op]
        node = ChakraNode(
            op + 1, ops.name[row], _TYPES.get(OpKind(int(ops.kind[row])), NodeType.COMP),
            (host + 1,) if host >= 0 else (),
            tuple(source + 1 for source in sorted({*waits, *data, *implied})),
            duration_ps=int(ops.recorded_ps[row]), attributes=attributes,
        )  # fmt: skip
        return node_bytes(node) + self._told.of_row(row)
