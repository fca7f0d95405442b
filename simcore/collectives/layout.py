"""Where the ranks of a group sit: nodes, GPUs and NICs, reduced to what collectives need to know."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Protocol

from simcore.errors import InputError
from simcore.hardware.specs import ClusterSpec
from simcore.hardware.topology import Links


class Fabric(Protocol):
    """What is asked of a topology; :class:`simcore.hardware.Topology` is one.  Links are indices."""

    @property
    def cluster(self) -> ClusterSpec:
        """The hardware behind the links."""
        ...

    @property
    def links(self) -> Links:
        """Capacity and latency of every link."""
        ...

    @property
    def num_gpus(self) -> int:
        """GPUs of the whole cluster."""
        ...

    def gpu_of_rank(self, rank: int) -> int:
        """GPU that runs ``rank``."""
        ...

    def node_of(self, gpu: int) -> int:
        """Node that holds ``gpu``."""
        ...

    def local_of(self, gpu: int) -> int:
        """Position of ``gpu`` within its node."""
        ...

    def route(self, src_gpu: int, dst_gpu: int) -> tuple[int, ...]:
        """Links from one GPU to another, in order."""
        ...

    def latency_s(self, src_gpu: int, dst_gpu: int) -> float:
        """One-way latency of a small message."""
        ...

    def nvlink_out(self, gpu: int) -> int:
        """Link from ``gpu`` into its node's switch."""
        ...

    def nvlink_in(self, gpu: int) -> int:
        """Link from the node's switch to ``gpu``."""
        ...

    def nic_out(self, gpu: int) -> int:
        """Sending side of the NIC of ``gpu``."""
        ...

    def nic_in(self, gpu: int) -> int:
        """Receiving side of the NIC of ``gpu``."""
        ...


@dataclass(frozen=True)
class Layout:
    """A group on its hardware: ``nodes[m]`` are the GPUs on the group's m-th node, by local index.

    ``local_gpus`` are the same as positions within the node.  ``nics_used``: NICs of the group's GPUs on the
    node with the fewest.  ``network_s``: wire latency from a node to the next, averaged around the group.
    Groups that differ only in which nodes they sit on have equal :attr:`signature`, and so do permutations
    of one group: what NCCL decides for one holds for all.
    """

    nodes: tuple[tuple[int, ...], ...]
    local_gpus: tuple[tuple[int, ...], ...]
    nics_used: int
    network_s: float

    @cached_property
    def num_ranks(self) -> int:
        """Ranks of the group."""
        return sum(len(gpus) for gpus in self.nodes)

    @property
    def num_nodes(self) -> int:
        """Nodes that hold at least one rank."""
        return len(self.nodes)

    @cached_property
    def max_per_node(self) -> int:
        """Ranks on the fullest node."""
        return max(len(gpus) for gpus in self.nodes)

    @cached_property
    def signature(self) -> tuple[object, ...]:
        """Equal for groups of the same shape; every node's local indices once if all nodes are alike."""
        shapes = set(self.local_gpus)
        shape = next(iter(shapes)) if len(shapes) == 1 else self.local_gpus
        return self.num_ranks, self.num_nodes, self.nics_used, self.network_s, shape


def checked_ranks(fabric: Fabric, ranks: Sequence[int]) -> None:
    """InputError for an empty group, a rank twice, or a rank that the topology has no GPU for."""
    if not ranks:
        raise InputError("a collective needs at least one rank")
    if len(set(ranks)) != len(ranks):
        seen: set[int] = set()
        twice = next(rank for rank in ranks if rank in seen or seen.add(rank))  # type: ignore[func-returns-value]
        raise InputError(f"rank {twice} appears twice in a group of {len(ranks)}")
    low, high = min(ranks), max(ranks)
    if low < 0 or high >= fabric.num_gpus:
        outside = low if low < 0 else high
        raise InputError(
            f"rank {outside} is outside cluster {fabric.cluster.name!r}, which has {fabric.num_gpus} GPUs"
        )


def layout_of(fabric: Fabric, ranks: Sequence[int]) -> Layout:
    """The layout of ``ranks`` in any order.  InputError as :func:`checked_ranks`."""
    checked_ranks(fabric, ranks)
    by_node: dict[int, list[int]] = {}
    for gpu in sorted(fabric.gpu_of_rank(rank) for rank in ranks):
        by_node.setdefault(fabric.node_of(gpu), []).append(gpu)
    nodes = tuple(tuple(by_node[node]) for node in sorted(by_node))
    local = tuple(tuple(fabric.local_of(gpu) for gpu in gpus) for gpus in nodes)
    nics = min(len({fabric.nic_out(gpu) for gpu in gpus}) for gpus in nodes)
    return Layout(nodes, local, nics, _mean_network_s(fabric, nodes))


def _mean_network_s(fabric: Fabric, nodes: tuple[tuple[int, ...], ...]) -> float:
    if len(nodes) == 1:
        return 0.0
    first = fabric.local_of(nodes[0][0])
    rail = [gpus[0] - fabric.local_of(gpus[0]) + first for gpus in nodes]
    hops = [fabric.latency_s(src, dst) for src, dst in pairwise([*rail, rail[0]])]
    return math.fsum(hops) / len(hops)
