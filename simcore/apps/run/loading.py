"""The workload and the cluster of a scenario, checked against each other."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simcore.apps.run.irregular import with_node_latencies
from simcore.apps.run.scenario import Scenario
from simcore.errors import GraphError, InputError, OutOfMemoryError
from simcore.graph import Graph, load_graph
from simcore.graph.schedules import bubble_fraction, grid
from simcore.hardware import ClusterSpec, load_cluster
from simcore.memory import ProgramMemory, check_fits, peak_memory

if TYPE_CHECKING:
    from workloads.jobs import Description


#: What to do where the prediction of memory is thought to be wrong: it misses by 6% on average.
_ANYWAY = "predicted memory may be wrong; --set memory.check=warn answers all the same"


@dataclass(frozen=True)
class Loaded:
    """A workload, its cluster, and the description that it was generated from, if it was."""

    graph: Graph
    cluster: ClusterSpec
    description: Description | None = None

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What was assumed to complete the description."""
        return self.description.assumptions if self.description is not None else ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What of the description contradicts itself, or was never seen to run."""
        return self.description.warnings if self.description is not None else ()

    def fits(
        self, graph: Graph, cluster: ClusterSpec, *, refuse: bool = True
    ) -> tuple[tuple[ProgramMemory, ...], str]:
        """Peak memory of the job, perhaps edited, and a warning where it does not fit but is not refused.

        OutOfMemoryError, with what would fit, where it is refused.
        """
        memory = peak_memory(graph)
        advice = None if self.description is None else self._advice
        try:
            return check_fits(graph, cluster.gpu, memory, advice=advice), ""
        except OutOfMemoryError as error:
            if refuse:
                raise OutOfMemoryError(f"{error}\n  {_ANYWAY}") from None
            first = str(error).splitlines()[0]
            return memory, f"{first}: the step time is that of GPUs on which it would fit"

    def _advice(self, available_bytes: int) -> list[str]:
        from workloads.jobs import what_fits

        assert self.description is not None
        return what_fits(self.description, available_bytes)


def loaded(scenario: Scenario) -> Loaded:
    """Read or generate the workload, and load the cluster.  Errors: InputError for either."""
    settings = scenario.settings
    cluster = load_cluster(scenario.cluster, settings.hardware)
    if scenario.described is None:
        assert scenario.graph_dir is not None, "a scenario has a graph or a description"
        return Loaded(load_graph(scenario.graph_dir), with_node_latencies(cluster, settings.nodes))
    job = scenario.described.complete(cluster.num_gpus, cluster.gpu.generation)
    cluster = load_cluster(scenario.cluster, {**job.gpu, **settings.hardware})
    return Loaded(job.graph(), with_node_latencies(cluster, settings.nodes), job)


def schedule_text(scenario: Scenario, *, as_json: bool = False) -> str:
    """The pipeline schedule of a described job: who does what when, and how long stages wait.

    ``as_json``: one object with the actions of each stage in order, the lines of the grid and the bubble as a
    share of the work.  InputError for a workload that is no description.
    """
    if scenario.described is None:
        raise InputError(
            "--show-schedule needs a described job: a model's name, a config.json or a YAML file"
        )
    job = scenario.described.complete(load_cluster(scenario.cluster, scenario.settings.hardware).num_gpus)
    schedule, placement = job.schedule()
    lines, bubble = grid(schedule, placement), bubble_fraction(schedule, placement)
    if as_json:
        stages = [[str(action) for action in actions] for actions in schedule]
        found = {"schedule": job.parallel.schedule, "placement": placement, "stages": stages}
        return json.dumps({**found, "grid": lines.splitlines(), "bubble": bubble})
    return (
        f"{lines}\n"
        "F forward (1 unit), B backward (2), or its halves I and W (1 each): microbatch.chunk; messages take"
        f" no time here\nbubble: {bubble:.1%} of the work"
    )


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
