"""Switches between nodes: trees of leaves, spines and pods, or a dragonfly.  Links are numbered from 0.

Note [Uplinks]
    All uplinks of a switch are one link of as many cables.  A flow's packets take one cable (ECMP by flow);
    a fluid flow shares their sum.  ``oversubscription`` is what can arrive from below divided by what can
    leave upwards.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from simcore.errors import InputError
from simcore.hardware.links import LinkBlock, pair_block, pair_index, switch_block
from simcore.hardware.specs import ClusterSpec
from simcore.hardware.wiring import NicPorts

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class FabricLinks(Protocol):
    """Links above the NICs.

    ``is_tree``: whether the links between two leaves are those above the one and those above the other, as
    :meth:`above` lists them.
    """

    is_tree: bool
    num_leaves: int
    blocks: tuple[LinkBlock, ...]
    bytes_per_s: Floats
    latency_s: Floats
    cables: Ints

    def route(self, src_leaf: int, dst_leaf: int) -> tuple[int, ...]:
        """Links from one leaf to another; empty for a leaf and itself."""
        ...

    def above(self, leaves: Ints) -> Ints:
        """Links above each leaf, up and down for every level: shape ``[len(leaves), 2 * levels]``."""
        ...


def leaf_groups(cluster: ClusterSpec) -> int:
    """Groups of ``nodes_per_leaf`` nodes, the last may be smaller."""
    return -(-cluster.num_nodes // cluster.nodes_per_leaf)


def leaves_per_group(cluster: ClusterSpec, ports: NicPorts) -> int:
    """Leaves of each such group: one per NIC port on a rail fabric, else one."""
    return len(ports.nics) if cluster.fabric == "rail" else 1


def fabric_of(cluster: ClusterSpec, ports: NicPorts) -> FabricLinks:
    """The fabric of a cluster.  InputError where leaves do not fill pods or groups as they must."""
    return Dragonfly(cluster, ports) if cluster.fabric == "dragonfly" else SwitchTree(cluster, ports)


def _nics_below(cluster: ClusterSpec, ports: NicPorts) -> Floats:
    """NICs that are plugged into each leaf."""
    groups = leaf_groups(cluster)
    nodes = np.full(groups, cluster.nodes_per_leaf, dtype=np.float64)
    nodes[-1] = cluster.num_nodes - (groups - 1) * cluster.nodes_per_leaf
    if cluster.fabric == "rail":
        return (nodes[:, None] * [len(nics) for nics in ports.nics]).reshape(-1)
    return nodes * cluster.nics_per_node


def _cable_bytes_per_s(cluster: ClusterSpec) -> float:
    """What data can use of one cable between switches."""
    return (cluster.uplink_bytes_per_s or cluster.nic_bytes_per_s) * cluster.nic_efficiency


class SwitchTree:
    """Leaves below spines; with ``leaves_per_pod``, spines of a pod below a core."""

    is_tree = True

    def __init__(self, cluster: ClusterSpec, ports: NicPorts) -> None:
        nic_rate = cluster.nic_bytes_per_s * cluster.nic_efficiency
        leaf_rate = _nics_below(cluster, ports) * nic_rate / cluster.spine_oversubscription
        self.num_leaves = len(leaf_rate)
        self._per_pod = cluster.leaves_per_pod
        rates = [leaf_rate]
        if self._per_pod:
            rails = leaves_per_group(cluster, ports)
            if self._per_pod % rails:
                raise InputError(
                    f"leaves_per_pod = {self._per_pod} must be a multiple of the {rails} rails; nearest:"
                    f" {max(1, round(self._per_pod / rails)) * rails}"
                )
            starts = np.arange(0, self.num_leaves, self._per_pod)
            rates.append(np.add.reduceat(leaf_rate, starts) / cluster.core_oversubscription)
        self.blocks: tuple[LinkBlock, ...] = tuple(
            switch_block(kind, len(level)) for kind, level in zip(("leaf", "pod"), rates, strict=False)
        )
        both_ways = np.repeat(np.concatenate(rates), 2)
        self.bytes_per_s = both_ways
        self.latency_s = np.full(len(both_ways), cluster.hop_latency_s)
        cables = np.rint(both_ways / _cable_bytes_per_s(cluster)).astype(np.int64)
        self.cables = np.maximum(cables, 1)

    def route(self, src_leaf: int, dst_leaf: int) -> tuple[int, ...]:
        """Up to the lowest switches that both leaves are below, and down."""
        if src_leaf == dst_leaf:
            return ()
        up, down = 2 * src_leaf, 2 * dst_leaf + 1
        if not self._per_pod or src_leaf // self._per_pod == dst_leaf // self._per_pod:
            return up, down
        first = 2 * self.num_leaves
        return (
            up,
            first + 2 * (src_leaf // self._per_pod),
            first + 2 * (dst_leaf // self._per_pod) + 1,
            down,
        )

    def above(self, leaves: Ints) -> Ints:
        """Up and down link of each leaf, then of its pod where there are pods."""
        columns = [2 * leaves]
        if self._per_pod:
            columns.append(2 * (self.num_leaves + leaves // self._per_pod))
        return np.stack([link for up in columns for link in (up, up + 1)], axis=-1)


class Dragonfly:
    """Groups of leaves that are all joined to each other; groups are all joined by links between leaves.

    Routes are minimal: to the leaf that has the link to the other group, over it, and on to the leaf there.
    Leaf ``h mod a`` of ``a`` holds the link to the h-th of the other groups (Kim, Dally, Scott, Abts,
    "Technology-driven, highly-scalable dragonfly topology", ISCA 2008).
    """

    is_tree = False

    def __init__(self, cluster: ClusterSpec, ports: NicPorts) -> None:
        del ports
        leaves, size = leaf_groups(cluster), cluster.leaves_per_group
        if not size or not cluster.local_cables or not cluster.global_cables:
            raise InputError('fabric = "dragonfly" needs leaves_per_group, local_cables and global_cables')
        if leaves % size:
            whole = -(-leaves // size) * size * cluster.nodes_per_leaf
            raise InputError(
                f"leaves_per_group = {size} does not divide the {leaves} leaves of {cluster.num_nodes} nodes;"
                f" nearest: num_nodes = {whole}"
            )
        self.num_leaves = leaves
        self._size, self._groups = size, leaves // size
        self.blocks: tuple[LinkBlock, ...] = (
            pair_block("local", size, leaves),
            pair_block("global", self._groups, self._groups),
        )
        local, across = self.blocks[0].size, self.blocks[1].size
        self.cables = np.repeat([cluster.local_cables, cluster.global_cables], [local, across])
        self.bytes_per_s = self.cables * _cable_bytes_per_s(cluster)
        self.latency_s = np.full(local + across, cluster.hop_latency_s)

    def route(self, src_leaf: int, dst_leaf: int) -> tuple[int, ...]:
        """At most three links: local, global, local."""
        size = self._size
        src_group, dst_group = src_leaf // size, dst_leaf // size
        if src_group == dst_group:
            return self._local(src_leaf, dst_leaf)
        leave, enter = self._gateway(src_group, dst_group), self._gateway(dst_group, src_group)
        between = self.blocks[0].size + pair_index(src_group, dst_group, self._groups)
        return (*self._local(src_leaf, leave), between, *self._local(enter, dst_leaf))

    def above(self, leaves: Ints) -> Ints:
        """Nothing: which links a leaf uses depends on where it sends."""
        return np.zeros((len(leaves), 0), dtype=np.int64)

    def _local(self, src: int, dst: int) -> tuple[int, ...]:
        return () if src == dst else (pair_index(src, dst, self._size),)

    def _gateway(self, group: int, other: int) -> int:
        return group * self._size + (other - (other > group)) % self._size
