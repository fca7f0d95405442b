"""Any graph as Chakra files, one per rank, that read back as the same ops, sizes, groups and dependencies."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from simcore.collectives.kinds import kind_of
from simcore.errors import InputError
from simcore.files import whole_folder
from simcore.graph import Graph
from simcore.graph.flatten import StreamOrder, resolve_edges
from simcore.graph.kinds import COMMUNICATION, ON_HOST, is_on_host
from simcore.graph.ops import OP_COLUMNS, EdgeKind, OpKind
from workloads.imports.chakra.read import ChakraNode, write_nodes
from workloads.imports.chakra.schema import COLLECTIVES, NodeType, messages

#: Columns that are written under Chakra's own names, or that are the node itself.
_OWN = {"name", "kind", "flops", "num_bytes", "forward_op"}
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
) -> int:
    """Write ``rank.N.et`` for each rank (or only ``ranks``), and ``comm_group.json``; returns the nodes.

    The folder appears whole or not at all, and replaces an export that is there.

    ``data_deps`` holds what must have ended: recorded waits, producers of data, and what streams and
    synchronisations imply (named again in ``implied_deps``; producers without a wait in ``data_only_deps``).
    ``ctrl_deps`` is the host's last own work before the launch.
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
                numbers.setdefault((name, group.ranks_of(rank)), str(len(numbers)))
    total = 0
    bodies: dict[int, _ProgramNodes] = {}
    members = {number: list(ranks_of) for (_, ranks_of), number in numbers.items()}
    with whole_folder(folder, "Chakra export") as fresh:
        (fresh / "comm_group.json").write_text(json.dumps(members), encoding="utf-8")
        for done, rank in enumerate(chosen):
            program = int(graph.program_of_rank[rank])
            if program not in bodies:  # ranks of a program mostly follow one another
                bodies = {program: _ProgramNodes(graph, program)}
            with (fresh / f"rank.{rank}.et").open("wb") as handle:
                total += write_nodes(handle, bodies[program].nodes(rank, numbers))
            if progress is not None:
                progress((done + 1) / len(chosen))
    return total


class _ProgramNodes:
    """What the ranks of one program have in common."""

    def __init__(self, graph: Graph, program: int) -> None:
        self.graph = graph
        flat = graph.flat_ops(graph.programs[program])
        self.rows = flat.row.tolist()
        count = len(self.rows)
        self.waits = _by_target(*resolve_edges(graph, flat.program, EdgeKind.WAIT, flat))
        self.data = _by_target(*resolve_edges(graph, flat.program, EdgeKind.DATA, flat))
        before = StreamOrder.of(graph, flat).predecessors()
        ops = graph.ops
        kinds = ops.kind[flat.row]
        on_host = is_on_host(kinds)
        self.implied: list[tuple[int, ...]] = []
        self.host_before: list[int] = []
        last: dict[str, int] = {}
        last_host = -1
        for op in range(count):
            stream = ops.stream[self.rows[op]]
            self.host_before.append(last_host)
            if on_host[op]:
                last_host = op
            if kinds[op] == int(OpKind.SYNC):
                waited = last.values() if not stream else [last[stream]] if stream in last else []
                self.implied.append(tuple(sorted(waited)))
            elif kinds[op] == int(OpKind.HOST) or before[op] < 0:
                self.implied.append(())
            else:
                self.implied.append((last[stream],) if stream in last else ())
            if not on_host[op]:
                last[stream] = op

    def nodes(self, rank: int, numbers: dict[tuple[str, tuple[int, ...]], str]) -> Iterator[ChakraNode]:
        """The nodes of ``rank``: its groups, then its ops in launch order; op ``i`` has the id ``i + 1``."""
        told = [
            {"pg_name": number, "pg_desc": name, "ranks": list(members), "group_size": len(members)}
            for (name, members), number in numbers.items()
            if rank in members
        ]
        yield ChakraNode(0, GROUPS_NODE, NodeType.METADATA, input_values=repr([json.dumps(told)]))
        for op, row in enumerate(self.rows):
            waits, data, implied = self.waits.get(op, ()), self.data.get(op, ()), self.implied[op]
            attributes = self._attributes(row, rank, numbers)
            only = sorted(set(data) - set(waits))
            attributes |= {
                key: tuple(source + 1 for source in sources)
                for key, sources in (("implied_deps", sorted(set(implied) - set(waits) - set(data))),
                                     ("data_only_deps", only),
                                     ("also_data_deps", sorted(set(data) & set(waits))))
                if sources
            }  # fmt: skip
            host = self.host_before[op]
            kind = OpKind(int(self.graph.ops.kind[row]))
            yield ChakraNode(
                op + 1, self.graph.ops.name[row], _TYPES.get(kind, NodeType.COMP),
                (host + 1,) if host >= 0 else (),
                tuple(source + 1 for source in sorted({*waits, *data, *implied})),
                duration_ps=int(self.graph.ops.recorded_ps[row]), attributes=attributes,
            )  # fmt: skip

    def _attributes(
        self, row: int, rank: int, numbers: dict[tuple[str, tuple[int, ...]], str]
    ) -> dict[str, Any]:
        ops = self.graph.ops
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
        if kind not in COMMUNICATION:
            return found
        group = self.graph.groups[ops.group[row]]
        members = group.ranks_of(rank)
        found["pg_name"] = numbers[ops.group[row], members]
        found["comm_bytes"] = size = int(ops.num_bytes[row])
        if kind == OpKind.COLLECTIVE:
            collective = ops.collective[row]
            if collective not in COLLECTIVES:
                raise InputError(f"collective {collective!r}: Chakra has no word for it")
            found["comm_type"] = COLLECTIVES.index(collective)
            # Chakra counts what a rank puts in: of an all_gather its share.
            size = kind_of(collective).given_bytes(size, len(members))
        else:
            peer = members[(members.index(rank) + int(ops.peer_delta[row])) % len(members)]
            ends = (rank, peer) if kind == OpKind.SEND else (peer, rank)
            found["comm_src"], found["comm_dst"], found["comm_tag"] = *ends, int(found["pg_name"])
        found["comm_size"] = size
        return found


def _by_target(sources: Any, targets: Any) -> dict[int, tuple[int, ...]]:
    found: dict[int, list[int]] = defaultdict(list)
    for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
        found[target].append(source)
    return {target: tuple(sources_of) for target, sources_of in found.items()}
