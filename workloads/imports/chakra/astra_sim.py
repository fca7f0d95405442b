"""Nodes of a graph as ASTRA-sim plays them.

Note [What ASTRA-sim takes].  By its feeder (astra-sim/chakra, src/feeder_v3), Workload.cc and Statistics.cc
of 2025 and 2026: a COMP node lasts its duration, in whole us.  Of computation and of communication (receives
aside) one node of a rank runs at a time; of several that may, the one with the lowest id.  Groups are numbers
from 1 and come from the file that ``--comm-group-configuration`` names.  A METADATA node or one of a CPU ends
the run, and so does a memory node without remote memory.  There is no reduce, gather, scatter or barrier; a
broadcast lasts its duration and waits for nobody.  Dependencies on data and control are the same.  A node of
0 us takes 1 ns.

So copies become COMP nodes, a barrier the all_reduce that NCCL makes of it, and a reduce, gather or scatter a
broadcast.  The host's own work, events between streams and groups of one are no nodes: who comes after them
comes after what they came after.  Times are rounded to whole us with the rest carried on to the stream's
next, so that sums hold.  Launch overheads and times of the host do not go out, nor do SMs that communication
holds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from simcore.collectives.kinds import kind_of
from simcore.errors import InputError
from simcore.graph import Graph
from simcore.graph.kinds import COMMUNICATION, P2P, PRICED
from simcore.graph.ops import OpKind
from simcore.units import PS_PER_US
from workloads.imports.chakra.order import ProgramOrder
from workloads.imports.chakra.read import ChakraNode, attribute_bytes, delimited, node_bytes
from workloads.imports.chakra.schema import COLLECTIVES, NodeType

_TYPES = {
    OpKind.COLLECTIVE: NodeType.COMM_COLL, OpKind.SEND: NodeType.COMM_SEND, OpKind.RECV: NodeType.COMM_RECV,
}  # fmt: skip
_PLAYED = ("all_reduce", "all_gather", "all_to_all", "reduce_scatter")
_LEAST_BYTES = 4  # a message of none ends ASTRA-sim's run


class AstraSimNodes:
    """Nodes of the ranks of one program; ``alone_ps`` is how long each row of the op table lasts alone."""

    def __init__(
        self,
        graph: Graph,
        order: ProgramOrder,
        numbers: Mapping[tuple[str, tuple[int, ...]], str],
        alone_ps: Sequence[int],
    ) -> None:
        self._graph = graph
        self._numbers = numbers
        self._rows = order.rows
        #: By op, the last node of each stream that who comes after it comes after.
        after: list[dict[str, int]] = []
        #: By node its message, and the rest of it where ranks differ: the row, else -1.
        self._nodes: list[tuple[bytes, int]] = []
        left_ps: dict[str, int] = defaultdict(int)
        for op, row in enumerate(order.rows):
            kind, stream = OpKind(int(graph.ops.kind[row])), graph.ops.stream[row]
            host = order.host_before[op]
            sources = {*order.waits.get(op, ()), *order.data.get(op, ()), *order.implied[op]}
            needed: dict[str, int] = {}
            for source in {*sources, host} - {-1}:
                needed |= {on: max(node, needed.get(on, 0)) for on, node in after[source].items()}
            lasts_ps = max(0, int(alone_ps[row]))
            meets = kind in COMMUNICATION and graph.groups[graph.ops.group[row]].size > 1
            if not meets and kind not in PRICED:
                after.append(needed)
                continue
            number = len(self._nodes) + 1
            after.append({stream: number})
            lasts_us, left_ps[stream] = divmod(left_ps[stream] + lasts_ps + PS_PER_US // 2, PS_PER_US)
            left_ps[stream] -= PS_PER_US // 2
            node = ChakraNode(
                number, graph.ops.name[row], _TYPES.get(kind, NodeType.COMP),
                data_deps=tuple(sorted(needed.values())), duration_ps=lasts_us * PS_PER_US,
                attributes={"is_cpu_op": False},
            )  # fmt: skip
            self._nodes.append((node_bytes(node), row if meets else -1))

    def of_rank(self, rank: int) -> list[bytes]:
        """Messages of ``rank``, in launch order, the first with the id 1."""
        told = {row: attribute_bytes(self._meeting(row, rank)) for _, row in self._nodes if row >= 0}
        return [delimited(message + told.get(row, b"")) for message, row in self._nodes]

    def _meeting(self, row: int, rank: int) -> dict[str, Any]:
        """With whom a row communicates, and how much ``rank`` puts in."""
        ops = self._graph.ops
        members = self._graph.groups[ops.group[row]].ranks_of(rank)
        number = self._numbers[ops.group[row], members]
        size = int(ops.num_bytes[row])
        kind = OpKind(int(ops.kind[row]))
        if kind in P2P:
            peer = members[(members.index(rank) + int(ops.peer_delta[row])) % len(members)]
            source, target = (rank, peer) if kind == OpKind.SEND else (peer, rank)
            return {
                "comm_src": source, "comm_dst": target, "comm_tag": int(number),
                "comm_size": max(_LEAST_BYTES, size),
            }  # fmt: skip
        collective = ops.collective[row]
        if collective not in COLLECTIVES:
            raise InputError(f"collective {collective!r}: ASTRA-sim has nothing like it")
        size = max(_LEAST_BYTES, kind_of(collective).given_bytes(size, len(members)))
        if collective == "barrier":
            collective = "all_reduce"
        elif collective not in _PLAYED:
            collective = "broadcast"
        return {"pg_name": number, "comm_type": COLLECTIVES.index(collective), "comm_size": size}
