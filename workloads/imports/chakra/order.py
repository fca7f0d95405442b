"""A launch order for Chakra nodes."""

from __future__ import annotations

import heapq
from collections import defaultdict
from typing import NamedTuple

from simcore.errors import InputError
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
