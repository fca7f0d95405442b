"""Where GPUs sit and which links are theirs, as arrays over all GPUs of a topology."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from simcore.graph.ops import IntArray
from simcore.symmetry.colours import unique_rows

if TYPE_CHECKING:
    from simcore.hardware import Topology


class Fabric:
    """Places, ports and leaves of GPUs, vectorised; which links belong to one GPU alone.

    ``gpu`` is by rank, all else by GPU.  ``is_alike``: whether equal patterns of members mean equal plans;
    where routes depend on more (a dragonfly's gateways) every instance is planned by itself.
    """

    def __init__(self, topology: Topology, num_ranks: int) -> None:
        self.topology = topology
        self.gpu = topology.gpus_of_ranks(num_ranks)
        self.per_node = topology.cluster.gpus_per_node
        self.node = topology.nodes_of_all()
        self.domain = topology.domains_of_all()
        self.leaf = topology.leaves_of_all()
        self.leaf_group = self.node // topology.cluster.nodes_per_leaf
        self.port = np.tile(topology.ports.of_gpu, topology.cluster.num_nodes)
        self.is_alike = topology.fabric.is_tree
        #: links that belong to a GPU alone; links beyond the node that it shares with others
        self.own = topology.own_links_of_all()
        self.shared = topology.shared_links_of_all()
        self.ports = np.concatenate([self.own, self.shared], axis=1)
        #: links inside each node that are nobody's own, by node
        self.node_links = topology.node_links_of_all()

    @cached_property
    def figures(self) -> IntArray:
        """Colour of each GPU by the capacities and latencies of all its ports, its own and shared ones."""
        return unique_rows(self._figures_of(self.ports))

    @cached_property
    def node_figures(self) -> tuple[IntArray, npt.NDArray[np.bool_]]:
        """Per GPU the colour of its whole node, link by link, and whether the node's GPUs differ."""
        by_node = self.figures.reshape(-1, self.per_node)
        uneven = (by_node != by_node[:, :1]).any(axis=1)
        if self.node_links.shape[1]:
            inside = unique_rows(self._figures_of(self.node_links))
            by_node = np.concatenate([by_node, inside[:, None]], axis=1)
            uneven[:] = True
        if len(set(self.topology.ports.of_gpu)) > 1 and not self._is_regular():
            uneven[:] = True
        return np.repeat(unique_rows(by_node), self.per_node), np.repeat(uneven, self.per_node)

    def _is_regular(self) -> bool:
        """Whether all NIC ports are alike: so many NICs, so many GPUs."""
        ports = self.topology.ports
        users = np.bincount(ports.of_gpu)
        return bool((users == users[0]).all()) and len({len(nics) for nics in ports.nics}) == 1

    def _figures_of(self, links: IntArray) -> npt.NDArray[np.float64]:
        of_all = self.topology.links
        return np.concatenate([of_all.bytes_per_s[links], of_all.latency_s[links]], axis=1)
