"""Links and routes of a cluster, as data.

A link is directed; its name is stable and can be used in ``--set link.<name>.bytes_per_s=...``.

Note [Link order]
    Links are numbered in blocks, so that an index is arithmetic and nothing is looked up: links inside nodes
    (with NVSwitches the ports out of all GPUs, then those into all GPUs; else node by node), NICs out
    (node-major), NICs in, then the fabric's.  Link ``l`` of the node ``n`` is ``first[l] + n * stride``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from simcore.distinct import distinct
from simcore.elementary import plain_sum
from simcore.errors import InputError
from simcore.hardware.fabrics import fabric_of, leaves_per_group
from simcore.hardware.links import LinkNames, Links, nic_blocks, node_block, port_blocks
from simcore.hardware.node import node_of, ports_of
from simcore.hardware.specs import ClusterSpec
from simcore.outside import refuse_beyond_memory

__all__ = ["Links", "Topology", "checked_placement", "link_names"]

Ints = npt.NDArray[np.int64]


def link_names(cluster: ClusterSpec) -> LinkNames:
    """Names of all links of a cluster."""
    node, ports = node_of(cluster), ports_of(cluster)
    inside = (
        port_blocks(cluster.num_gpus)
        if cluster.intra_node == "nvswitch"
        else (node_block(cluster.num_nodes, [node.name(link) for link in range(node.num_links)]),)
    )
    nics = nic_blocks(cluster.num_nodes, len(ports.nics))
    return LinkNames((*inside, *nics, *fabric_of(cluster, ports).blocks))


_LINK_BYTES: Final = 180  # as measured for a small job on 32.5 million links (5.3 GiB)
_SLACK: Final = 1e-12  # relative: sums of capacities are rounded
_FEW: Final = 4  # pairs of GPUs that are sooner looked at one by one than as arrays


class Topology:
    """Links of a cluster and the route between any two GPUs.  Built in O(GPUs), routes in O(1).

    ``links`` is read by the network; the methods below are the only place that knows the wiring.  Errors:
    InputError for wiring that connects not all, and for placements that the cluster does not have room for.
    """

    def __init__(self, cluster: ClusterSpec) -> None:
        self.cluster = cluster
        self._per_node, self._per_domain = cluster.gpus_per_node, cluster.gpus_per_domain
        self._num_nodes = cluster.num_nodes
        self._gpus = cluster.num_gpus
        self._switched = cluster.intra_node == "nvswitch"
        self._rail_routing = cluster.rail_routing and cluster.intra_node != "pcie"
        self.node = node_of(cluster)
        self.ports = ports_of(cluster)
        self.fabric = fabric_of(cluster, self.ports)
        self._num_ports = len(self.ports.nics)
        self._nics = self._num_nodes * self._num_ports
        self._first_nic = self._num_nodes * self.node.num_links
        self._first_leaf_link = self._first_nic + 2 * self._nics
        self._leaves_per_group = leaves_per_group(cluster, self.ports)
        self._placed = checked_placement(cluster)
        self.links = self._build()

    @property
    def num_gpus(self) -> int:
        """GPUs of the whole cluster."""
        return self._gpus

    def gpu_of_rank(self, rank: int) -> int:
        """GPU that runs ``rank``.  InputError when the placement has none for it."""
        if self.cluster.placement == "linear":
            return self._checked(rank)
        if not 0 <= rank < self.cluster.num_placed:
            raise InputError(
                f"rank {rank} is not placed: the placement of cluster {self.cluster.name!r} has ranks 0 to"
                f" {self.cluster.num_placed - 1}"
            )
        if self._placed is not None:
            return int(self._placed[rank])
        local, node = divmod(rank, self._num_nodes)
        return node * self._per_node + local

    def gpus_of_ranks(self, num_ranks: int) -> Ints:
        """GPUs of the ranks 0 to ``num_ranks`` - 1.  InputError as :meth:`gpu_of_rank`."""
        return self.gpus_of(np.arange(num_ranks, dtype=np.int64))

    def gpus_of(self, ranks: Ints) -> Ints:
        """:meth:`gpu_of_rank` of many ranks."""
        for rank in (int(ranks.min()), int(ranks.max())) if len(ranks) else ():
            self.gpu_of_rank(rank)
        if self._placed is not None:
            return self._placed[ranks]
        if self.cluster.placement == "round_robin":
            return ranks % self._num_nodes * self._per_node + ranks // self._num_nodes
        return ranks

    def node_of(self, gpu: int) -> int:
        """Node that holds ``gpu``."""
        return self._checked(gpu) // self._per_node

    def place_of(self, gpu: int) -> int:
        """Position of ``gpu`` within its NVLink domain."""
        return self._checked(gpu) % self._per_domain

    def nic_of(self, gpu: int) -> tuple[int, int]:
        """(node, NIC port within the node) that ``gpu`` sends through."""
        node, local = divmod(self._checked(gpu), self._per_node)
        return node, self.ports.of_gpu[local]

    def leaf_of(self, gpu: int) -> int:
        """Leaf switch that the NIC of ``gpu`` is plugged into."""
        node, port = self.nic_of(gpu)
        group = node // self.cluster.nodes_per_leaf
        return group * self._leaves_per_group + port if self._leaves_per_group > 1 else group

    def nvlink_out(self, gpu: int) -> int:
        """Link index of the NVLink port that leaves ``gpu``.  InputError for a node without NVSwitch."""
        return self._port(gpu)

    def nvlink_in(self, gpu: int) -> int:
        """Link index of the NVLink port that enters ``gpu``.  InputError for a node without NVSwitch."""
        return self._gpus + self._port(gpu)

    def nic_out(self, gpu: int) -> int:
        """Link index of the sending side of the NIC of ``gpu``."""
        node, port = self.nic_of(gpu)
        return self._first_nic + node * self._num_ports + port

    def nic_in(self, gpu: int) -> int:
        """Link index of the receiving side of the NIC of ``gpu``."""
        return self.nic_out(gpu) + self._nics

    @property
    def sending_nics(self) -> range:
        """Link indices of the sending sides of all NICs."""
        return range(self._first_nic, self._first_nic + self._nics)

    def are_sending_nics(self, links: Ints) -> npt.NDArray[np.bool_]:
        """Of each link whether it is the sending side of a NIC."""
        nics = self.sending_nics
        return (links >= nics.start) & (links < nics.stop)

    def is_inside(self, link: int) -> bool:
        """Whether ``link`` lies inside a node: neither a NIC nor between switches."""
        return link < self._first_nic

    def nics_out_of(self, gpus: Ints) -> Ints:
        """:meth:`nic_out` of many GPUs."""
        return self._nics_of_all[0][gpus]

    def inside_links(self, gpus: Ints) -> Ints:
        """Links inside nodes that belong to ``gpus``: their ports, or all links of their nodes."""
        if self._switched:
            return np.concatenate([gpus, self._gpus + gpus])
        nodes = distinct(gpus // self._per_node)
        return (nodes[:, None] * self.node.num_links + np.arange(self.node.num_links)).reshape(-1)

    def route(self, src_gpu: int, dst_gpu: int) -> tuple[int, ...]:
        """Links from ``src_gpu`` to ``dst_gpu`` in order; empty for a GPU and itself.

        Within an NVLink domain as it is wired; between domains to the NIC, over the switches that lie
        between the NICs' leaves (on a rail fabric: different rails, or groups of nodes), and from the NIC.
        """
        per_node = self._per_node
        if src_gpu // self._per_domain == dst_gpu // self._per_domain:
            self._checked(src_gpu)
            if src_gpu == dst_gpu:
                return ()
            if self._switched:
                return src_gpu, self._gpus + dst_gpu
            way = self.node.route(src_gpu % per_node, dst_gpu % per_node)
            return self._in_node(src_gpu // per_node, way)
        first, last = self.nic_out(src_gpu), self.nic_in(dst_gpu)
        src_leaf, dst_leaf = self.leaf_of(src_gpu), self.leaf_of(dst_gpu)
        between = [self._first_leaf_link + link for link in self.fabric.route(src_leaf, dst_leaf)]
        if self._switched:
            return first, *between, last
        leave = self._in_node(src_gpu // per_node, self.node.to_nic(src_gpu % per_node))
        enter = self._in_node(dst_gpu // per_node, self.node.from_nic(dst_gpu % per_node))
        return *leave, first, *between, last, *enter

    def routes(self, src: Ints, dst: Ints) -> Ints:
        """:meth:`route` of many pairs of GPUs: shape [pairs, most links of any], -1 behind the last link."""
        if not self._switched:
            return _padded([self.route(*pair) for pair in zip(src.tolist(), dst.tolist(), strict=True)])
        src_domain, dst_domain = src // self._per_domain, dst // self._per_domain
        leaf, (out, into) = self._leaf, self._nics_of_all
        ways, which = np.unique(leaf[src] * self.fabric.num_leaves + leaf[dst], return_inverse=True)
        between = _padded([self.fabric.route(*divmod(way, self.fabric.num_leaves)) for way in ways.tolist()])
        found = np.full((len(src), between.shape[1] + 2), -1, dtype=np.int64)
        across = src_domain != dst_domain
        found[:, 0] = np.where(across, out[src], src)
        found[:, 1:-1] = np.where(between >= 0, self._first_leaf_link + between, -1)[which]
        found[~across, 1:] = -1
        last = np.where(across, (found[:, :-1] >= 0).sum(axis=1), 1)
        found[np.arange(len(src)), last] = np.where(across, into[dst], self._gpus + dst)
        found[src == dst] = -1
        return found

    def relay(self, src_gpu: int, dst_gpu: int) -> int:
        """GPU on the node of ``src_gpu`` from which data for ``dst_gpu`` leaves.

        With rail routing that is the one at the place of ``dst_gpu``, if NVLink leads there; else, and where
        both use the same NIC port anyway, ``src_gpu`` itself.
        """
        same = src_gpu // self._per_domain == dst_gpu // self._per_domain
        if not self._rail_routing or same:
            return src_gpu
        src, dst = src_gpu % self._per_node, dst_gpu % self._per_node
        if self.ports.of_gpu[src] == self.ports.of_gpu[dst] or not self.node.is_joined(src, dst):
            return src_gpu
        return src_gpu - src + dst

    def message_route(self, src_gpu: int, dst_gpu: int) -> tuple[int, ...]:
        """Links of a send/recv or of an all_to_all's message, over the relay (what NCCL calls PXN)."""
        via = self.relay(src_gpu, dst_gpu)
        return (*self.route(src_gpu, via), *self.route(via, dst_gpu))

    def latency_s(self, src_gpu: int, dst_gpu: int) -> float:
        """One-way latency of a small message in seconds: the sum over the links of the route."""
        latency = self.links.latency_s
        return plain_sum(float(latency[link]) for link in self.route(src_gpu, dst_gpu))

    def latencies_s(self, src: Ints, dst: Ints) -> npt.NDArray[np.float64]:
        """:meth:`latency_s` of many pairs of GPUs."""
        if len(src) <= _FEW:
            return np.array([self.latency_s(*pair) for pair in zip(src.tolist(), dst.tolist(), strict=True)])
        total = np.zeros(len(src))
        for link in self.routes(src, dst).T:  # one after the other, as a plain sum has it
            total += np.where(link >= 0, self.links.latency_s[link], 0.0)
        return total

    def nodes_of_all(self) -> Ints:
        """Node of every GPU."""
        return np.arange(self._gpus, dtype=np.int64) // self._per_node

    def domains_of_all(self) -> Ints:
        """NVLink domain of every GPU."""
        return np.arange(self._gpus, dtype=np.int64) // self._per_domain

    def leaves_of_all(self) -> Ints:
        """Leaf of every GPU."""
        return self._leaf.copy()

    @cached_property
    def _leaf(self) -> Ints:
        group = self.nodes_of_all() // self.cluster.nodes_per_leaf
        if self._leaves_per_group == 1:
            return group
        port = np.tile(np.array(self.ports.of_gpu, dtype=np.int64), self._num_nodes)
        return group * self._leaves_per_group + port

    def own_links_of_all(self) -> Ints:
        """Links that belong to one GPU alone, by GPU: its NVSwitch ports, its NICs if nobody shares them."""
        gpus = np.arange(self._gpus, dtype=np.int64)
        columns = [gpus, self._gpus + gpus] if self._switched else []
        if self.ports.is_exclusive:
            columns += self._nics_of_all
        return np.stack(columns, axis=1) if columns else np.zeros((self._gpus, 0), dtype=np.int64)

    def shared_links_of_all(self) -> Ints:
        """Links beyond its node that a GPU shares with others, by GPU: NICs, uplinks of switches above."""
        columns = [] if self.ports.is_exclusive else self._nics_of_all
        above = self._first_leaf_link + self.fabric.above(self._leaf)
        return np.concatenate([*(column[:, None] for column in columns), above], axis=1)

    @cached_property
    def is_never_full(self) -> npt.NDArray[np.bool_]:
        """Per link whether all NICs below it together cannot fill it: uplinks of switches that do not block.

        Whatever crosses such a link has crossed, or will cross, NICs below it with as many bytes, so that it
        holds up nothing that they do not.
        """
        links = self.links.bytes_per_s
        found = np.zeros(len(links), dtype=np.bool_)
        above = self.fabric.above(self._leaf)
        if above.shape[1]:
            out, into = self._nics_of_all
            once = np.unique(out, return_index=True)[1]  # GPUs, one for each NIC
            uplinks = self._first_leaf_link + above[once]
            most = np.zeros(len(links))
            np.add.at(most, uplinks, np.maximum(links[out[once]], links[into[once]])[:, None])
            found[uplinks] = (most <= links * (1.0 + _SLACK))[uplinks]
        found.flags.writeable = False
        return found

    def node_links_of_all(self) -> Ints:
        """Links of each node that are nobody's own: shape [nodes, links]; none with NVSwitches."""
        count = 0 if self._switched else self.node.num_links
        return np.arange(self._num_nodes * count, dtype=np.int64).reshape(self._num_nodes, count)

    @cached_property
    def _nics_of_all(self) -> list[Ints]:
        port = np.tile(np.array(self.ports.of_gpu, dtype=np.int64), self._num_nodes)
        out = self._first_nic + self.nodes_of_all() * self._num_ports + port
        return [out, out + self._nics]

    def _in_node(self, node: int, way: tuple[int, ...]) -> tuple[int, ...]:
        first = node * self.node.num_links
        return tuple(first + link for link in way)

    def _port(self, gpu: int) -> int:
        if not self._switched:
            raise InputError(f"cluster {self.cluster.name!r} has no NVSwitch: its GPUs have no port into one")
        return self._checked(gpu)

    def _checked(self, gpu: int) -> int:
        if not 0 <= gpu < self._gpus:
            raise InputError(
                f"GPU {gpu} is outside cluster {self.cluster.name!r}, which has GPUs 0 to {self._gpus - 1}"
            )
        return gpu

    def _build(self) -> Links:
        cluster, node, fabric = self.cluster, self.node, self.fabric
        num_links = self._first_leaf_link + len(fabric.cables)
        refuse_beyond_memory(
            num_links * _LINK_BYTES,
            f"a simulation on cluster {cluster.name!r}",
            f"it has {num_links:,} links",
        )
        inside = node.num_links // node.stride
        nics = np.tile([len(nics) for nics in self.ports.nics], 2 * self._num_nodes).astype(np.int64)
        nic_rate = cluster.nic_bytes_per_s * cluster.nic_efficiency

        def of_nodes(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
            """A figure per link of a node, for all nodes in link order: block by block."""
            blocks = np.repeat(values.reshape(inside, 1, node.stride), self._num_nodes, axis=1)
            return blocks.reshape(-1)

        rate = np.concatenate([of_nodes(node.bytes_per_s), nics * nic_rate, fabric.bytes_per_s])
        # Half of an end-to-end latency belongs to each end's NIC; every further switch adds a hop.
        nic_latency = np.full(len(nics), cluster.nic_latency_s / 2)
        latency = np.concatenate([of_nodes(node.latency_s), nic_latency, fabric.latency_s])
        cables = np.concatenate([np.ones(self._first_nic, dtype=np.int64), nics, fabric.cables])
        names = link_names(cluster)
        for key, value in cluster.link_overrides.items():
            link, _, attribute = key.rpartition(".")
            (rate if attribute == "bytes_per_s" else latency)[names.index(link)] = value
        for column in (rate, latency, cables):
            column.flags.writeable = False
        return Links(names, rate, latency, cables)


def checked_placement(cluster: ClusterSpec) -> Ints | None:
    """GPUs by rank of a listed placement, None for the others.

    Errors: InputError for a GPU that does not exist or that two ranks would share.
    """
    if cluster.placement != "listed":
        return None
    placed = np.array(cluster.placed_gpus, dtype=np.int64)
    outside = np.flatnonzero((placed < 0) | (placed >= cluster.num_gpus))
    if len(outside):
        rank = int(outside[0])
        raise InputError(
            f"placement puts rank {rank} on GPU {placed[rank]}, but cluster {cluster.name!r} has GPUs 0 to"
            f" {cluster.num_gpus - 1}"
        )
    order = np.argsort(placed, kind="stable")
    twice = np.flatnonzero(placed[order][1:] == placed[order][:-1])
    if len(twice):
        first, second = order[twice[0]], order[twice[0] + 1]
        raise InputError(f"placement puts both rank {first} and rank {second} on GPU {placed[first]}")
    return placed


def _padded(rows: Sequence[Sequence[int]]) -> Ints:
    """Rows of different lengths as an array, -1 behind their ends."""
    found = np.full((len(rows), max(map(len, rows), default=0)), -1, dtype=np.int64)
    for number, row in enumerate(rows):
        found[number, : len(row)] = row
    return found
