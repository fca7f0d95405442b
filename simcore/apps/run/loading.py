"""What a scenario names, loaded: workload, cluster, the GPUs of single ranks, a learned interference."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from simcore.apps.run.scenario import Scenario
from simcore.apps.run.settings import RunSettings
from simcore.errors import GraphError, InputError, OutOfMemoryError, nearest
from simcore.graph import Graph, graph_hash
from simcore.graph.schedules import bubble_fraction, grid
from simcore.hardware import ClusterSpec, GpuSpec, load_cluster, num_nic_links
from simcore.memory import MemoryVerdict, ProgramMemory, parts_and_advice, peak_memory
from simcore.records import dataclass
from simcore.units import Number

if TYPE_CHECKING:
    from simcore.interference import LearnedInterference
    from workloads.jobs import Assumed, Description

_LATENCY: Final = Number("time", at_most=1)
_INTERFERENCES: Final = ("shared", "learned")
#: What to do where the prediction of memory is thought to be wrong.
_ANYWAY: Final = "predicted memory may be wrong; --set memory.check=warn answers all the same"


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
    def asked(self) -> Description | str:
        """What the job is, for the key of a question: its description, or the hash of its graph."""
        return self.description if self.description is not None else graph_hash(self.graph)

    @property
    def software(self) -> Mapping[str, Any]:
        """Kernel choices of a described job."""
        return {} if self.description is None else self.description.software.model_dump(mode="json")

    @property
    def warnings(self) -> tuple[str, ...]:
        """What of the description contradicts itself, or was never seen to run."""
        return self.description.warnings if self.description is not None else ()

    def built(self, settings: RunSettings) -> Graph:
        """The graph with the kernels of the build that runs it; a described job has them already."""
        kernels = "" if self.description is not None else kernel_mapping(self.graph, settings)
        if not kernels:
            return self.graph
        from simcore.graph import apply_kernels

        return apply_kernels(self.graph, kernels)

    def fits(
        self,
        graph: Graph,
        cluster: ClusterSpec,
        scenario: Scenario,
        *,
        timed: bool = False,
        advised: bool = True,
    ) -> tuple[tuple[ProgramMemory, ...], MemoryVerdict]:
        """Peak memory of the job, perhaps edited, and whether it fits.

        OutOfMemoryError where it does not and is to be refused, ``advised`` with what would fit, ``timed``
        with what that costs in time, simulated.
        """
        from simcore.apps.run.fitting import outside_of, played, played_graph, remedies, verdict_of

        memory = peak_memory(graph)
        unchanged = self.description is not None and graph is self.graph
        job = self.description if unchanged else None
        stages = played(job) if job is not None else played_graph(graph, cluster, scenario)
        outside = outside_of(cluster, job, graph, nccl=scenario.settings.nccl)
        said = verdict_of(outside.available_bytes(cluster.gpu), stages, memory)
        if said.word == "does not fit" and scenario.settings.refuse_memory:
            if not advised:
                raise OutOfMemoryError(str(said))

            def advice(available_bytes: int) -> list[str]:
                return remedies(self, scenario, available_bytes, timed=timed)

            lines = parts_and_advice(graph, cluster.gpu, memory, outside, advice if unchanged else None)
            raise OutOfMemoryError("\n  ".join([str(said), *lines, _ANYWAY]))
        return memory, said


def loaded(scenario: Scenario) -> Loaded:
    """Read or generate the workload, and load the cluster.  Errors: InputError for either."""
    settings = scenario.settings
    cluster, job = loaded_cluster(scenario)
    cluster = with_node_latencies(cluster, settings.nodes)
    if job is None:
        assert scenario.graph_dir is not None, "a scenario has a graph or a description"
        from simcore.graph import load_graph

        return Loaded(load_graph(scenario.graph_dir), cluster)
    return Loaded(job.graph(), cluster, job)


def loaded_cluster(scenario: Scenario) -> tuple[ClusterSpec, Description | None]:
    """The cluster, and the job if it is described, complete.  Errors: InputError for either."""
    settings = scenario.settings
    cluster = load_cluster(scenario.cluster, settings.hardware, force=scenario.force)
    if scenario.described is None:
        return cluster, None
    job = scenario.described.complete(cluster)
    return load_cluster(scenario.cluster, {**job.gpu, **settings.hardware}, force=scenario.force), job


def assumed_of(scenario: Scenario, job: Description | None, graph: Graph | None = None) -> list[Assumed]:
    """What the question left open, what is not the job's own first; ``graph``: of what is no description."""
    from workloads.jobs import Assumed

    assumed = []
    if scenario.usual_cluster:
        assumed.append(Assumed("cluster", scenario.cluster, "as none is named"))
    if job is not None:
        assumed += job.assumed
    elif (
        graph is not None
        and not scenario.settings.kernels
        and (kernels := kernel_mapping(graph, scenario.settings))
    ):
        why = f"kernels of the build that is usual for {graph.workload.precision}"
        if kernels:
            assumed.append(Assumed("workload.kernels", kernels, why))
    return assumed


def schedule_text(scenario: Scenario, *, as_json: bool = False) -> str:
    """The pipeline schedule of a described job: who does what when, and how long stages wait.

    ``as_json``: one object with the actions of each stage in order, the lines of the grid and the bubble as a
    share of the work.  InputError for a workload that is no description.
    """
    if scenario.described is None:
        raise InputError(
            "--show-schedule needs a described job: a model's name, a config.json or a YAML file"
        )
    cluster = load_cluster(scenario.cluster, scenario.settings.hardware, force=scenario.force)
    job = scenario.described.complete(cluster)
    schedule, placement = job.schedule()
    lines, bubble = grid(schedule, placement), bubble_fraction(schedule, placement)
    if as_json:
        stages = [[str(action) for action in actions] for actions in schedule]
        found = {"schedule": job.parallel.schedule, "placement": placement, "stages": stages}
        return json.dumps({**found, "grid": lines.splitlines(), "bubble": bubble})
    return (
        f"{_folded(lines)}\n"
        "F forward (1 unit), B backward (2), or its halves I and W (1 each):\n"
        f"microbatch.chunk; messages take no time here\nbubble: {bubble:.1%} of the work"
    )


def _folded(lines: str, columns: int = 80) -> str:
    """A grid of stages over time in blocks of at most so many columns, one below the other."""
    rows = lines.splitlines()
    label = len(f"stage {len(rows) - 1}  ")
    cell = 1 + max(len(one) for row in rows for one in row[label:].split())
    step = (columns - label) // cell * cell
    blocks = [
        "\n".join((row[:label] + row[at : at + step]).rstrip() for row in rows)
        for at in range(label, max(map(len, rows)), step)
    ]
    return "\n\n".join(blocks)


def kernel_mapping(graph: Graph, settings: RunSettings) -> str:
    """The kernel mapping of a traced program: what was set, else what is usual."""
    if settings.kernels:
        return settings.kernels
    from simcore.graph import usual_kernels

    return usual_kernels(graph)


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


def with_node_latencies(cluster: ClusterSpec, extra: Mapping[int, str]) -> ClusterSpec:
    """``cluster`` with seconds of extra latency, one way, on every NIC of some nodes (half at each end).

    Errors: InputError for a node that does not exist, or a NIC whose latency is also set by ``link.*``.
    """
    overrides = dict(cluster.link_overrides)
    for node, text in extra.items():
        if not 0 <= node < cluster.num_nodes:
            raise InputError(f"node.{node}: cluster {cluster.name!r} has nodes 0 to {cluster.num_nodes - 1}")
        seconds = _LATENCY.from_text(text, f"node.{node}.extra_latency_s")
        for nic in range(num_nic_links(cluster)):
            for way in ("in", "out"):
                key = f"nic.{node}.{nic}.{way}.latency_s"
                if key in overrides:
                    raise InputError(f"node.{node}.extra_latency_s contradicts link.{key}: give one of them")
                overrides[key] = cluster.nic_latency_s / 2 + seconds
    return replace(cluster, link_overrides=overrides)


def rank_gpus(settings: RunSettings, cluster_name: str, *, force: bool = False) -> dict[int, GpuSpec]:
    """GPUs of the ranks that ``rank.<n>.gpu.*`` settings change.  InputError for values that cannot be."""
    known: dict[tuple[tuple[str, str], ...], GpuSpec] = {}
    found = {}
    for rank, changes in settings.ranks.items():
        key = tuple(sorted(changes.items()))
        if key not in known:
            try:
                known[key] = load_cluster(cluster_name, {**settings.hardware, **changes}, force=force).gpu
            except InputError as error:
                raise InputError(f"rank.{rank}: {error}") from None
        found[rank] = known[key]
    return found


def chosen_interference(text: str) -> LearnedInterference | None:
    """The learned function that ``shared``, ``learned`` or ``learned:FILE`` asks for; None for shared ones.

    Errors: InputError for another word or a file that holds no such function.
    """
    word, _, path = text.partition(":")
    if word not in _INTERFERENCES or (path and word == "shared"):
        raise InputError(f"unknown interference {text!r}{nearest(word, _INTERFERENCES)}")
    if word == "shared":
        return None
    from simcore.interference import load_interference

    return load_interference(Path(path)) if path else load_interference()
