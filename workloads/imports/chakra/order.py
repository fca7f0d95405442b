"""A launch order for Chakra nodes."""

from __future__ import annotations

import heapq
from collections import defaultdict

from simcore.errors import InputError
from workloads.imports.chakra.read import ChakraNode


def in_order(label: str, nodes: list[ChakraNode]) -> list[ChakraNode]:
    """Nodes so that each comes after what it depends on; else by start, then as they stand in the file.

    Errors: InputError for two nodes of one id, a dependency on none, a circle.
    """
    place = {node.id: index for index, node in enumerate(nodes)}
    if len(place) < len(nodes):
        seen: set[int] = set()
        twice = next(node.id for node in nodes if node.id in seen or seen.add(node.id))  # type: ignore[func-returns-value]
        raise InputError(f"{label}: two nodes have the id {twice}")
    if _ordered(nodes, place):
        return nodes
    waiting = [0] * len(nodes)
    after: dict[int, list[int]] = defaultdict(list)
    for index, node in enumerate(nodes):
        for source in {*node.data_deps, *node.ctrl_deps}:
            if source not in place:
                raise InputError(
                    f"{label}: node {node.id} ({node.name[:80]}) depends on {source}, which is missing"
                )
            waiting[index] += 1
            after[place[source]].append(index)
    ready = [(max(0, node.start_ps), i) for i, node in enumerate(nodes) if not waiting[i]]
    heapq.heapify(ready)
    order = []
    while ready:
        _, index = heapq.heappop(ready)
        order.append(nodes[index])
        for target in after[index]:
            waiting[target] -= 1
            if not waiting[target]:
                heapq.heappush(ready, (max(0, nodes[target].start_ps), target))
    if len(order) < len(nodes):
        stuck = next(node for index, node in enumerate(nodes) if waiting[index])
        raise InputError(f"{label}: node {stuck.id} ({stuck.name[:80]}) depends on itself, in a circle")
    return order


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
