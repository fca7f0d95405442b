"""The workload and the cluster of a scenario, checked against each other."""

from __future__ import annotations

import math

from simcore.cli.irregular import with_node_latencies
from simcore.cli.scenario import Scenario
from simcore.errors import GraphError, InputError
from simcore.graph import Graph, load_graph
from simcore.hardware import ClusterSpec, load_cluster


def loaded(scenario: Scenario) -> tuple[Graph, ClusterSpec, tuple[str, ...]]:
    """The workload, the cluster, and what was assumed to complete a description."""
    settings = scenario.settings
    cluster = load_cluster(scenario.cluster, settings.hardware)
    assumed: tuple[str, ...] = ()
    if scenario.described is not None:
        job = scenario.described.describe(cluster.num_gpus)
        cluster = load_cluster(scenario.cluster, {**job.gpu, **settings.hardware})
        graph, assumed = job.graph(), job.assumptions
    else:
        assert scenario.graph_dir is not None, "a scenario has a graph or a description"
        graph = load_graph(scenario.graph_dir)
    return graph, with_node_latencies(cluster, settings.nodes), assumed


def check_dims(graph: Graph) -> None:
    """GraphError unless the dims multiply to the world size."""
    dims = graph.workload.dims
    if dims and math.prod(dims.values()) != graph.world_size:
        product = " x ".join(f"{axis} {size}" for axis, size in dims.items())
        raise GraphError(
            f"workload {graph.workload.name!r}: {product} = {math.prod(dims.values())},"
            f" but it has {graph.world_size} ranks"
        )


def check_world(graph: Graph, cluster: ClusterSpec) -> None:
    """InputError when the cluster has fewer GPUs, or its placement fewer ranks, than the workload has."""
    if graph.world_size > cluster.num_placed and cluster.placement == "listed":
        raise InputError(
            f"workload {graph.workload.name!r} has ranks 0 to {graph.world_size - 1}, but the placement of"
            f" cluster {cluster.name!r} stops at rank {cluster.num_placed - 1}: rank {cluster.num_placed} and"
            " later ones are not placed"
        )
    if graph.world_size > cluster.num_gpus:
        dims = " x ".join(f"{axis.upper()}{size}" for axis, size in graph.workload.dims.items() if size > 1)
        needed = -(-graph.world_size // cluster.gpus_per_node)
        raise InputError(
            f"workload {graph.workload.name!r} needs {graph.world_size} GPUs{f' ({dims})' if dims else ''},"
            f" cluster {cluster.name!r} has {cluster.num_gpus}; choose a larger --cluster, or"
            f" --set cluster.num_nodes={needed}"
        )
