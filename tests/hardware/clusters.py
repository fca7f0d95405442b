"""Small clusters for tests, by overrides of profiles."""

from __future__ import annotations

from simcore.hardware import ClusterSpec, Topology, load_cluster

#: Two GPUs per PCIe switch, two switches per CPU, one NIC per switch.
PCIE = {
    "intra_node": "pcie",
    "gpus_per_node": "8",
    "nics_per_node": "4",
    "pcie_bytes_per_s": "16GB/s",
    "pcie_efficiency": "0.75",
    "pcie_latency_s": "1us",
    "pcie_switch_of_gpu": "0,0,1,1,2,2,3,3",
    "cpu_of_pcie_switch": "0,0,1,1",
    "cpu_bytes_per_s": "10GB/s",
    "cpu_latency_s": "0.5us",
}
DRAGONFLY = {
    "fabric": "dragonfly",
    "nodes_per_leaf": "1",
    "leaves_per_group": "2",
    "local_cables": "3",
    "global_cables": "1",
}


def cluster(name: str = "h800-16", **keys: str) -> ClusterSpec:
    """A profile with keys of the cluster changed."""
    return load_cluster(name, {f"cluster.{key}": value for key, value in keys.items()})


def topology(name: str = "h800-16", **keys: str) -> Topology:
    """Links and routes of :func:`cluster`."""
    return Topology(cluster(name, **keys))


def route_names(where: Topology, src: int, dst: int) -> list[str]:
    """Names of the links of a route."""
    return [where.links.names[link] for link in where.route(src, dst)]


def rate(where: Topology, name: str) -> float:
    """Capacity of a link, bytes/s."""
    return float(where.links.bytes_per_s[where.links.names.index(name)])
