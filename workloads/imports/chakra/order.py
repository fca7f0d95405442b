"""What comes before what: a launch order for nodes that are read, dependencies of ops that are written."""

from __future__ import annotations

import heapq
from collections import defaultdict
from typing import NamedTuple

from simcore.errors import InputError
from simcore.graph import Graph
from simcore.graph.flatten import StreamOrder, resolve_edges
from simcore.graph.kinds import is_on_host
from simcore.graph.ops import EdgeKind, IntArray, OpKind
from simcore.records import dataclass
from workloads.imports.chakra.read import ChakraNode


class LeftAside(NamedTuple):
    """Control dependencies that were not kept: on nodes that the file lacks, and in circles."""

    lacking: int = 0
    in_circles: int = 0


def in_order(label: str, nodes: list[ChakraNode]) -> tuple[list[ChakraNode], LeftAside]:
    """Nodes so that each comes after what it depends on; else by start, then as they stand in the file.

    Chakra's own feeder goes by data alone, so traces of its linker need not hold together otherwise: second
    are control dependencies that could not be kept.
    Errors: InputError for two nodes of one id, data that comes from no node or in a circle.
    """
    place = {node.id: index for index, node in enumerate(nodes)}
    if len(place) < len(nodes):
        seen: set[int] = set()
        twice = next(node.id for node in nodes if node.id in seen or seen.add(node.id))  # type: ignore[func-returns-value]
        raise InputError(f"{label}: two nodes have the id {twice}")
    if _ordered(nodes, place):
        return nodes, LeftAside()
    lacking = in_circles = 0
    waiting, for_data = [0] * len(nodes), [0] * len(nodes)
    after: dict[int, list[tuple[int, bool]]] = defaultdict(list)
    for index, node in enumerate(nodes):
        data = set(node.data_deps)
        for source in data.union(node.ctrl_deps):
            if source in place:
                waiting[index] += 1
                for_data[index] += source in data
                after[place[source]].append((index, source in data))
            elif source in data:
                raise InputError(
                    f"{label}: node {node.id} ({node.name[:80]}) depends on {source}, which is missing"
                )
            else:
                lacking += 1

    def entry(index: int) -> tuple[int, int]:
        return max(0, nodes[index].start_ps), index

    ready = [entry(index) for index, count in enumerate(waiting) if not count]
    data_ready = [entry(index) for index, count in enumerate(for_data) if waiting[index] and not count]
    heapq.heapify(ready)
    heapq.heapify(data_ready)
    order: list[ChakraNode] = []
    placed = [False] * len(nodes)
    while ready or data_ready:
        _, index = heapq.heappop(ready or data_ready)
        if placed[index]:
            continue
        in_circles += waiting[index]
        placed[index] = True
        order.append(nodes[index])
        for target, is_data in after[index]:
            waiting[target] -= 1
            for_data[target] -= is_data
            if not waiting[target]:
                heapq.heappush(ready, entry(target))
            elif is_data and not for_data[target]:
                heapq.heappush(data_ready, entry(target))
    if len(order) < len(nodes):
        stuck = next(node for index, node in enumerate(nodes) if not placed[index])
        raise InputError(f"{label}: node {stuck.id} ({stuck.name[:80]}) depends on itself, in a circle")
    return order, LeftAside(lacking, in_circles)


def _ordered(nodes: list[ChakraNode], place: dict[int, int]) -> bool:
    """Whether the file stands in such an order already, as most do."""
    since = 0
    for index, node in enumerate(nodes):
        begins = max(0, node.start_ps)
        if begins < since:
            return False
        since = begins
        for sources in (node.data_deps, node.ctrl_deps):
            for source in sources:
                if place.get(source, index) >= index:
                    return False
    return True


@dataclass(frozen=True)
class ProgramOrder:
    """What each op of a program comes after, as numbers of ops in launch order.

    ``rows`` are the ops' rows of the op table.  ``waits`` and ``data`` are edges by target; ``implied`` what
    streams and synchronisations add; ``host_before`` the host's last own work before the launch, -1: none.
    ``batch`` numbers fused launches over the whole program (-1: none), as templates number theirs.
    """

    rows: list[int]
    waits: dict[int, tuple[int, ...]]
    data: dict[int, tuple[int, ...]]
    implied: list[tuple[int, ...]]
    host_before: list[int]
    batch: list[int]

    @classmethod
    def of(cls, graph: Graph, program: int) -> ProgramOrder:
        """That of a program, by its number."""
        flat = graph.flat_ops(graph.programs[program])
        rows = flat.row.tolist()
        before = StreamOrder.of(graph, flat).predecessors()
        ops = graph.ops
        kinds = ops.kind[flat.row]
        on_host = is_on_host(kinds)
        implied: list[tuple[int, ...]] = []
        host_before: list[int] = []
        last: dict[str, int] = {}
        last_host = -1
        for op, row in enumerate(rows):
            stream = ops.stream[row]
            host_before.append(last_host)
            if on_host[op]:
                last_host = op
            if kinds[op] == int(OpKind.SYNC):
                waited = last.values() if not stream else [last[stream]] if stream in last else []
                implied.append(tuple(sorted(waited)))
            elif kinds[op] == int(OpKind.HOST) or before[op] < 0:
                implied.append(())
            else:
                implied.append((last[stream],) if stream in last else ())
            if not on_host[op]:
                last[stream] = op
        edges = {
            kind: _by_target(*resolve_edges(graph, flat.program, kind, flat))
            for kind in (EdgeKind.WAIT, EdgeKind.DATA)
        }
        told = zip(flat.instance.tolist(), ops.batch[flat.row].tolist(), strict=True)
        numbers: dict[tuple[int, int], int] = {}
        batch = [-1 if of < 0 else numbers.setdefault((at, of), len(numbers)) for at, of in told]
        return cls(rows, edges[EdgeKind.WAIT], edges[EdgeKind.DATA], implied, host_before, batch)


def _by_target(sources: IntArray, targets: IntArray) -> dict[int, tuple[int, ...]]:
    found: dict[int, list[int]] = defaultdict(list)
    for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
        found[target].append(source)
    return {target: tuple(sources_of) for target, sources_of in found.items()}
