"""A plan reduced to its wires: what the fluid network must charge to be comparable with packets.

The packet network knows links and their latencies, and no software.  So the plan's fitted latency (kernel
start, flags, fences) and its channels' copy rate are taken out; its link loads and volume stay.  What comes
in their place is the time that its schedule takes alone on the wires, folded to one representative part
(:mod:`simcore.apps.studies.arrivals`).

Note [Latency that data cannot hide]
    The way of the first message is latency before data.  Everything else that a schedule takes beyond its
    bytes, waits between the steps, is spread over the data: alone, the plan moves no faster than its steps
    follow each other.  While a step waits, others may use the links; and where sharing makes data slower
    than the steps would follow, the waits vanish behind it.

Note [Folding a schedule]
    Rotation r of a ring or tree uses GPU k + r where rotation 0 uses GPU k, so at any moment the GPUs of a
    node see the same, a rotation apart: one NVLink port per node carries the lanes of all places of the node,
    and one NIC those that leave it.  In a ring all ranks begin together, so nodes whose hops are alike (the
    same latency and rate, place by place) see the same as well: one period of the pattern stands for all.
    A chain or tree has a place where it begins, so that all of its nodes stay.
    Links of the fabric carry several rotations at once where these share them: one gets its part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Final

from simcore.apps.studies.arrivals import PortLane, PortMessage, arrivals_s
from simcore.collectives.layout import PlacedGroup, layout_of
from simcore.collectives.loads import ring_order
from simcore.collectives.plan import CollectivePlan
from simcore.collectives.protocols import NCCL_STEPS
from simcore.collectives.tree import double_binary_tree
from simcore.hardware.topology import Topology
from simcore.network.packet.lanes import rail_route
from simcore.network.packet.program import RING_SLICES
from simcore.units import ps_from_s

_RING_WINDOW: Final = NCCL_STEPS // 2  # slots of a chunk of four, as slices of two
#: Chunks of a chain or tree that are played; from then on each further one takes as long as the last eight.
_PLAYED_CHUNKS: Final = 24
_PACE_CHUNKS: Final = 8
#: Steps of a ring that are played.
_PLAYED_STEPS: Final = 128
_NO_KEY: Final = -1


def bandwidth_s(topology: Topology, plan: CollectivePlan) -> float:
    """Time that the plan's bytes take on its tightest link, alone, in seconds."""
    rates = topology.links.bytes_per_s
    return max((plan.volume_bytes * use.weight / float(rates[use.link]) for use in plan.links), default=0.0)


def wire_plan(topology: Topology, plan: CollectivePlan) -> CollectivePlan:
    """``plan`` without software, its time alone as in Note [Latency that data cannot hide]."""
    if not plan.links:
        return replace(plan, latency_ps=0, rate_cap_bytes_per_s=float("inf"), alone_ps=0)
    first_s, data_s = first_message_s(topology, plan), bandwidth_s(topology, plan)
    if plan.algorithm in ("p2p", "pairwise"):
        moving_s = data_s
    else:
        whole_s = schedule_s(topology, plan, layout_of(topology, plan.ranks), data_s)
        moving_s = max(data_s, whole_s - first_s)
    return replace(
        plan,
        latency_ps=ps_from_s(first_s + moving_s - data_s),
        between_ps=ps_from_s(moving_s - data_s),
        rate_cap_bytes_per_s=float("inf"),
        alone_ps=ps_from_s(first_s + moving_s),
    )


def first_message_s(topology: Topology, plan: CollectivePlan) -> float:
    """Latency of the longest direct way among the plan's ranks that one of its messages takes first."""
    gpus = [topology.gpu_of_rank(rank) for rank in plan.ranks]
    if plan.algorithm in ("p2p", "pairwise"):
        return max(_latency_s(topology, rail_route(topology, gpus[0], other)) for other in gpus[1:])
    return _latency_s(topology, topology.route(gpus[0], gpus[1]))


def _latency_s(topology: Topology, route: tuple[int, ...]) -> float:
    return float(sum(topology.links.latency_s[link] for link in route))


def schedule_s(topology: Topology, plan: CollectivePlan, layout: PlacedGroup, least_s: float) -> float:
    """Seconds that a ring, chain or tree takes alone on its wires; its tightest link alone: ``least_s``."""
    if plan.algorithm == "tree":
        return _paced(plan.num_chunks, lambda *chunks: _tree_s(topology, plan, layout, *chunks), least_s)
    if plan.kind.root_chain:
        return _paced(
            plan.num_chunks,
            # Longer than its chunks are many, a chain ends faster than it goes on: only whole plays compare.
            lambda *chunks: (
                _chain_s(topology, plan, layout, chunks[1]),
                _chain_s(topology, plan, layout, chunks[0]),
            ),
            least_s,
        )
    loops = plan.num_chunks // layout.num_ranks
    steps = plan.num_steps
    if steps > _PLAYED_STEPS:
        # All ranks are alike: once their steps have found a rhythm, it goes on.
        early, late = _ring_s(topology, plan, layout, loops, _PLAYED_STEPS, _PLAYED_STEPS // 2)
        return loops * (
            late + (steps - _PLAYED_STEPS) * (late - early) / (_PLAYED_STEPS - _PLAYED_STEPS // 2)
        )
    first = _ring_s(topology, plan, layout, loops, steps)[1]
    if loops == 1:
        return first
    return first + (loops - 1) * (_ring_s(topology, plan, layout, loops, 2 * steps)[1] - first)


class _Ports:
    """Ports by what they stand for; ``period``: nodes that are told apart, ``rotations`` that share them."""

    def __init__(self, topology: Topology, layout: PlacedGroup, period: int, rotations: int) -> None:
        self._topology = topology
        self._rotations = rotations
        self._layout = layout
        self._period = period
        self._index: dict[tuple[object, ...], int] = {}
        self.bytes_per_s: list[float] = []

    def lane(self, src: tuple[int, int], dst: tuple[int, int], window: int) -> PortLane:
        """A lane between two (node of the group, place in the node), as rotation 0 has it."""
        topology, nodes = self._topology, self._layout.nodes
        gpus = nodes[src[0]][src[1]], nodes[dst[0]][dst[1]]
        route = topology.route(*gpus)
        found = []
        # Folded, the lanes into a node's GPUs are those out of them: one port says all.
        limiting = route[:1] if src[0] == dst[0] else route
        for place, link in enumerate(limiting):
            rate = float(topology.links.bytes_per_s[link])
            if self._rotations == 1:
                key: tuple[object, ...] = (link,)
            elif place == 0 or place == len(route) - 1:
                node = dst[0] if place else src[0]
                key = ("in" if place else "out", node % self._period, src[0] == dst[0])
            else:
                key = (link,)
                rate /= self._rotations_over(link, src[0], dst[0])
            if key not in self._index:
                self._index[key] = len(self.bytes_per_s)
                self.bytes_per_s.append(rate)
            found.append(self._index[key])
        return PortLane(tuple(found), float(topology.links.latency_s[list(route)].sum()), window)

    def _rotations_over(self, link: int, src_node: int, dst_node: int) -> int:
        pairs = zip(self._layout.nodes[src_node], self._layout.nodes[dst_node], strict=False)
        return max(1, sum(link in self._topology.route(src, dst) for src, dst in pairs))


def _paced(chunks: int, played_s: Callable[[int, int], tuple[float, float]], least_s: float) -> float:
    """Seconds for ``chunks`` that follow one another; ``least_s``: what they need on the tightest link.

    ``played_s(n, k)``: seconds for ``k`` of ``n`` chunks, and for all ``n``.
    """
    if chunks <= _PLAYED_CHUNKS:
        return played_s(chunks, chunks)[1]
    early, late = played_s(_PLAYED_CHUNKS, _PLAYED_CHUNKS - _PACE_CHUNKS)
    return late + (chunks - _PLAYED_CHUNKS) * max((late - early) / _PACE_CHUNKS, least_s / chunks)


def _ring_places(layout: PlacedGroup) -> list[tuple[int, int]]:
    """(node, place) of each position of the ring of rotation 0."""
    place = {gpu: (node, k) for node, gpus in enumerate(layout.nodes) for k, gpu in enumerate(gpus)}
    return [place[gpu] for gpu in ring_order(layout, 0)]


def _period(topology: Topology, layout: PlacedGroup) -> int:
    """Nodes after which the hops of the ring repeat."""
    count = layout.num_nodes
    if len({len(gpus) for gpus in layout.nodes}) > 1:
        return count
    order = ring_order(layout, 0)
    links = topology.links
    hops = []
    for src, dst in pairwise((*order, order[0])):
        route = list(topology.route(src, dst))
        hops.append((tuple(links.latency_s[route].tolist()), tuple(links.bytes_per_s[route].tolist())))
    size = layout.max_per_node
    by_node = [tuple(hops[node * size : (node + 1) * size]) for node in range(count)]
    return next(
        p
        for p in range(1, count + 1)
        if count % p == 0 and all(by_node[node] == by_node[node % p] for node in range(count))
    )


def _ring_s(
    topology: Topology, plan: CollectivePlan, layout: PlacedGroup, loops: int, played: int, early: int = 1
) -> tuple[float, float]:
    """The first ``early`` and all of ``played`` steps of a ring of ``loops`` loops: one period of nodes."""
    rotations = layout.max_per_node if layout.num_nodes > 1 else 1
    period = _period(topology, layout) if rotations > 1 or layout.num_nodes > 1 else 1
    places = _ring_places(layout)
    length = period * layout.max_per_node if layout.num_nodes > 1 else 1
    ports = _Ports(topology, layout, period, rotations)
    slices = RING_SLICES if plan.protocol == "Simple" else 1
    size = plan.num_bytes / (loops * rotations * layout.num_ranks * slices)
    steps = plan.num_steps
    lanes = []
    for position in range(length):
        following = places[(position + 1) % len(places)]
        lane = ports.lane(places[position], following, _RING_WINDOW)
        before = (position - 1) % length
        for step in range(played):
            for piece in range(slices):
                key = (step * slices + piece) * length
                if step % steps:
                    after, count = key - slices * length + before, 1
                elif step:  # a loop begins when the last slice of the one before is here
                    after, count = (step * slices - 1) * length + before, 1
                else:
                    after, count = _NO_KEY, 0
                lane.messages.append(PortMessage(size, after, count, key + position))
        lanes.append(lane)
    return arrivals_s(ports.bytes_per_s, lanes, early * slices)


def _chain_s(topology: Topology, plan: CollectivePlan, layout: PlacedGroup, chunks: int) -> float:
    """``chunks`` of those of a chain that starts at the first place of the ring."""
    rotations = layout.max_per_node if layout.num_nodes > 1 else 1
    ports = _Ports(topology, layout, layout.num_nodes, rotations)
    size = plan.num_bytes / rotations / plan.num_chunks
    lanes = []
    for hop, (src, dst) in enumerate(pairwise(_ring_places(layout))):
        lane = ports.lane(src, dst, NCCL_STEPS)
        for chunk in range(chunks):
            after = (hop - 1) * chunks + chunk if hop else _NO_KEY
            lane.messages.append(PortMessage(size, after, 1 if hop else 0, hop * chunks + chunk))
        lanes.append(lane)
    return arrivals_s(ports.bytes_per_s, lanes)[1]


def _tree_s(
    topology: Topology, plan: CollectivePlan, layout: PlacedGroup, chunks: int, early: int
) -> tuple[float, float]:
    """The first ``early`` and all of ``chunks`` of a double binary tree: both trees, chains in the nodes."""
    ports = _Ports(topology, layout, layout.num_nodes, layout.max_per_node)
    size = plan.num_bytes / (2 * layout.max_per_node) / plan.num_chunks
    lanes = []
    for which, tree in enumerate(double_binary_tree(layout.num_nodes)):
        place = [(node, k) for node, gpus in enumerate(layout.nodes) for k in range(len(gpus))]
        index = {at: number for number, at in enumerate(place)}
        parent = [
            index[node, k - 1] if k else index[above, 0] if (above := tree.parent[node]) >= 0 else -1
            for node, k in place
        ]
        children = [parent.count(member) for member in range(len(parent))]
        base = 2 * which * len(parent) * chunks
        for child, above in enumerate(parent):
            if above < 0:
                continue
            up = ports.lane(place[child], place[above], NCCL_STEPS)
            down = ports.lane(place[above], place[child], NCCL_STEPS)
            for chunk in range(chunks):
                # Sums for a member arrive under an even key, results under an odd one.
                sums = [base + 2 * (member * chunks + chunk) for member in (child, above)]
                up.messages.append(PortMessage(size, sums[0], children[child], sums[1]))
                is_root = parent[above] < 0
                ready = (sums[1], children[above]) if is_root else (sums[1] + 1, 1)
                down.messages.append(PortMessage(size, *ready, sums[0] + 1))
            lanes += [up, down]
    return arrivals_s(ports.bytes_per_s, lanes, early)
