"""Links and routes of a cluster, as data.

A link is directed; its name is stable and can be used in ``--set link.<name>.bytes_per_s=...``.

Note [Link order]
    Links are numbered in five blocks, so that an index is arithmetic and nothing is looked up:
    NVLink out of each GPU, NVLink into each GPU, NIC out (node-major), NIC in, then up and down of each
    leaf, interleaved.  Each GPU has one port into its node's switch per direction; the switch itself
    never limits (NVSwitch connects any pair at full port speed).  Leaves hang below spines: the up
    link of a leaf stands for all of its uplinks together.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, overload

import numpy as np
import numpy.typing as npt

from simcore.errors import InputError
from simcore.hardware.specs import ClusterSpec

_CANONICAL: Final = re.compile(r"0|[1-9][0-9]{0,8}")


def num_leaves(cluster: ClusterSpec) -> int:
    """Leaf switches: one per rail (or one in all) for each started group of ``nodes_per_leaf`` nodes."""
    groups = -(-cluster.num_nodes // cluster.nodes_per_leaf)
    return groups * (cluster.nics_per_node if cluster.fabric == "rail" else 1)


class LinkNames(Sequence[str]):
    """Names of all links, by index and back, computed on demand: half a million need no memory.

    ``nvlink.<gpu>.out|in``, ``nic.<node>.<n>.out|in``, ``leaf.<l>.up|down``; GPU numbers are global.
    """

    def __init__(self, cluster: ClusterSpec) -> None:
        self._gpus = cluster.num_gpus
        self._nics_per_node = cluster.nics_per_node
        self._nodes = cluster.num_nodes
        self._nics = cluster.num_nodes * cluster.nics_per_node
        self._leaves = num_leaves(cluster)

    def __len__(self) -> int:
        return 2 * (self._gpus + self._nics + self._leaves)

    def __iter__(self) -> Iterator[str]:
        return (self._name(link) for link in range(len(self)))

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        picked = range(len(self))[index]
        return self._name(picked) if isinstance(picked, int) else tuple(map(self._name, picked))

    def index(self, value: str, start: int = 0, stop: int | None = None) -> int:
        """Index of the link called ``value``.  InputError, saying what there is, if there is none."""
        link = self._find(value)
        if link is None or link not in range(len(self))[start:stop]:
            raise InputError(f"unknown link {value!r}; {self._hint(value)}")
        return link

    def _name(self, link: int) -> str:
        for block, direction in ((self._gpus, "out"), (self._gpus, "in")):
            if link < block:
                return f"nvlink.{link}.{direction}"
            link -= block
        for block, direction in ((self._nics, "out"), (self._nics, "in")):
            if link < block:
                node, nic = divmod(link, self._nics_per_node)
                return f"nic.{node}.{nic}.{direction}"
            link -= block
        return f"leaf.{link // 2}.{'down' if link % 2 else 'up'}"

    def _find(self, name: str) -> int | None:
        kind, *numbers, direction = name.split(".") if name.count(".") >= 2 else ("", "", "")
        if not all(_CANONICAL.fullmatch(number) for number in numbers):
            return None
        position = [int(n) for n in numbers]
        match kind, position, direction:
            case "nvlink", [gpu], ("out" | "in") if gpu < self._gpus:
                return gpu + self._gpus * (direction == "in")
            case "nic", [node, nic], ("out" | "in") if node < self._nodes and nic < self._nics_per_node:
                return 2 * self._gpus + self._nics * (direction == "in") + node * self._nics_per_node + nic
            case "leaf", [leaf], ("up" | "down") if leaf < self._leaves:
                return 2 * (self._gpus + self._nics + leaf) + (direction == "down")
        return None

    def _hint(self, name: str) -> str:
        """How the names of the kind that ``name`` is closest to are spelt and how far they go."""
        spelling = {
            "nvlink": f"nvlink.<gpu>.out|in with GPU 0 to {self._gpus - 1}",
            "nic": f"nic.<node>.<n>.out|in with node 0 to {self._nodes - 1} and n 0 to"
            f" {self._nics_per_node - 1}",
            "leaf": f"leaf.<n>.up|down with n 0 to {self._leaves - 1}",
        }
        kind = next(iter(difflib.get_close_matches(name.split(".")[0], spelling, n=1)), None)
        return f"links are {spelling[kind] if kind else '; '.join(spelling.values())}"


@dataclass(frozen=True)
class Links:
    """All directed links, columnar.  Names: ``nvlink.<gpu>.out``, ``nic.<node>.<n>.in``, ``leaf.<l>.up``."""

    names: Sequence[str]
    bytes_per_s: npt.NDArray[np.float64]  # usable by data, efficiency applied
    latency_s: npt.NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.bytes_per_s)


class Topology:
    """Links of a cluster and the route between any two GPUs.  Built in O(GPUs), routes in O(1).

    ``links`` is read by the network; the methods below are the only place that knows the wiring.
    """

    def __init__(self, cluster: ClusterSpec) -> None:
        self.cluster = cluster
        self._per_node = cluster.gpus_per_node
        self._nics_per_node = cluster.nics_per_node
        self._gpus = cluster.num_gpus
        self._nics = cluster.num_nodes * cluster.nics_per_node
        self.links = self._build()

    @property
    def num_gpus(self) -> int:
        """GPUs of the whole cluster."""
        return self._gpus

    def gpu_of_rank(self, rank: int) -> int:
        """GPU that runs ``rank`` (ranks fill nodes in order).  InputError when there are fewer GPUs."""
        return self._checked(rank)

    def node_of(self, gpu: int) -> int:
        """Node that holds ``gpu``."""
        return self._checked(gpu) // self._per_node

    def local_of(self, gpu: int) -> int:
        """Position of ``gpu`` within its node (local_rank)."""
        return self._checked(gpu) % self._per_node

    def nic_of(self, gpu: int) -> tuple[int, int]:
        """(node, NIC within the node) that ``gpu`` sends through; neighbours share when NICs are fewer."""
        node, local = divmod(self._checked(gpu), self._per_node)
        return node, local * self._nics_per_node // self._per_node

    def leaf_of(self, gpu: int) -> int:
        """Leaf switch that the NIC of ``gpu`` is plugged into."""
        node, nic = self.nic_of(gpu)
        group = node // self.cluster.nodes_per_leaf
        return group * self._nics_per_node + nic if self.cluster.fabric == "rail" else group

    def nvlink_out(self, gpu: int) -> int:
        """Link index of the NVLink port that leaves ``gpu``."""
        return self._checked(gpu)

    def nvlink_in(self, gpu: int) -> int:
        """Link index of the NVLink port that enters ``gpu``."""
        return self._gpus + self._checked(gpu)

    def nic_out(self, gpu: int) -> int:
        """Link index of the sending side of the NIC of ``gpu``."""
        node, nic = self.nic_of(gpu)
        return 2 * self._gpus + node * self._nics_per_node + nic

    def nic_in(self, gpu: int) -> int:
        """Link index of the receiving side of the NIC of ``gpu``."""
        return self.nic_out(gpu) + self._nics

    def leaf_up(self, leaf: int) -> int:
        """Link index of the uplinks of ``leaf`` towards the spines, together."""
        return 2 * (self._gpus + self._nics + leaf)

    def leaf_down(self, leaf: int) -> int:
        """Link index of the downlinks from the spines to ``leaf``, together."""
        return self.leaf_up(leaf) + 1

    def route(self, src_gpu: int, dst_gpu: int) -> tuple[int, ...]:
        """Links from ``src_gpu`` to ``dst_gpu`` in order; empty for a GPU and itself.

        Within a node over NVLink; between nodes NIC to NIC, over the spines when the NICs are on different
        leaves (on a rail fabric: different rails, or groups of nodes).
        """
        if src_gpu // self._per_node == dst_gpu // self._per_node:
            if src_gpu == dst_gpu:
                self._checked(src_gpu)
                return ()
            return self.nvlink_out(src_gpu), self.nvlink_in(dst_gpu)
        first, last = self.nic_out(src_gpu), self.nic_in(dst_gpu)
        src_leaf, dst_leaf = self.leaf_of(src_gpu), self.leaf_of(dst_gpu)
        if src_leaf == dst_leaf:
            return first, last
        return first, self.leaf_up(src_leaf), self.leaf_down(dst_leaf), last

    def latency_s(self, src_gpu: int, dst_gpu: int) -> float:
        """One-way latency of a small message in seconds: the sum over the links of the route."""
        latency = self.links.latency_s
        return float(sum(latency[link] for link in self.route(src_gpu, dst_gpu)))

    def _checked(self, gpu: int) -> int:
        if not 0 <= gpu < self._gpus:
            raise InputError(
                f"GPU {gpu} is outside cluster {self.cluster.name!r}, which has GPUs 0 to {self._gpus - 1}"
            )
        return gpu

    def _build(self) -> Links:
        cluster, gpu = self.cluster, self.cluster.gpu
        if self._per_node % self._nics_per_node:
            raise InputError(
                f"cluster {cluster.name!r}: {self._nics_per_node} NICs do not divide among"
                f" {self._per_node} GPUs"
            )
        nic_rate = cluster.nic_bytes_per_s * cluster.nic_efficiency
        rail = cluster.fabric == "rail"
        groups = -(-cluster.num_nodes // cluster.nodes_per_leaf)
        nodes = np.full(groups, cluster.nodes_per_leaf, dtype=np.float64)
        nodes[-1] = cluster.num_nodes - (groups - 1) * cluster.nodes_per_leaf
        nics_below = np.repeat(nodes, self._nics_per_node) if rail else nodes * self._nics_per_node
        leaf_rate = nics_below * nic_rate / cluster.spine_oversubscription
        blocks = (
            # Half of an end-to-end latency belongs to each end's port; a spine adds a hop up and one down.
            (2 * self._gpus, gpu.nvlink_bytes_per_s * gpu.nvlink_efficiency, cluster.nvlink_latency_s / 2),
            (2 * self._nics, nic_rate, cluster.nic_latency_s / 2),
            (2 * len(leaf_rate), np.repeat(leaf_rate, 2), cluster.hop_latency_s),
        )
        rate = np.concatenate([np.broadcast_to(np.asarray(r, dtype=np.float64), (n,)) for n, r, _ in blocks])
        latency = np.concatenate([np.full(n, s, dtype=np.float64) for n, _, s in blocks])
        names = LinkNames(cluster)
        for key, value in cluster.link_overrides.items():
            link, _, attribute = key.rpartition(".")
            (rate if attribute == "bytes_per_s" else latency)[names.index(link)] = value
        rate.flags.writeable = latency.flags.writeable = False
        return Links(names, rate, latency)
