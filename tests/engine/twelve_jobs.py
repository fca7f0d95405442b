"""Twelve small described jobs that between them use whatever the engine does, and the catalog's: by name.

Each of the twelve takes under a second, even with every rank and every kernel on its own, and repeats enough
microbatches, with tensor-parallel layers in most, for every shortcut to have something to shorten.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from simcore.cost import CostModel
from simcore.graph import Graph, apply_kernels, usual_kernels
from simcore.graph.groups import ProcessGroup
from simcore.graph.ops import Strings
from simcore.hardware import ClusterSpec, load_cluster
from simcore.run import Ran, Setup, run
from workloads import catalog
from workloads.jobs import complete

MODEL = {"name": "small", "family": "llama", "layers": 4, "hidden": 1024, "heads": 16, "ffn": 4096,
         "vocab": 32000}  # fmt: skip
TWO_NODES = {"cluster.num_nodes": "2", "cluster.gpus_per_node": "4", "cluster.nics_per_node": "4"}
EXPERTS = {**MODEL, "moe": {"num_experts": 8, "top_k": 2, "ffn": 1024}}


@dataclass(frozen=True)
class Job:
    """A graph, where it runs, and how: ``play`` runs it, with some fields of the setup changed."""

    graph: Graph
    cluster: ClusterSpec
    setup: Setup = field(default_factory=Setup)
    cost: CostModel | None = None

    def play(self, **changes: Any) -> Ran:
        return run(self.graph, self.cluster, replace(self.setup, **changes), cost=self.cost)


def described(
    parallel: Mapping[str, Any],
    batch: int,
    *,
    model: Mapping[str, Any] = MODEL,
    software: str | None = None,
    cluster: str = "h100-8",
    hardware: Mapping[str, str] | None = None,
    straggler: int | None = None,
    setup: Setup | None = None,
    **training: Any,
) -> Job:
    """``batch``: sequences of 2,048 tokens; ``hardware``: overrides; ``straggler``: a rank at half clock."""
    found = load_cluster(cluster, hardware or {})
    content = {
        "model": dict(model),
        "parallel": dict(parallel),
        "training": {"seq": 2048, "global_batch": batch, **training},
        **({"software": software} if software else {}),
    }
    job = complete(content, "a test", num_gpus=found.num_gpus, generation=found.gpu.generation)
    settings = {**job.gpu, **(hardware or {})}
    setup = setup or Setup()
    if straggler is not None:
        slow = load_cluster(cluster, {**settings, "gpu.clock": "0.5"}).gpu
        setup = replace(setup, rank_gpus={straggler: slow})
    return Job(job.graph(), load_cluster(cluster, settings), setup)


def dense() -> Job:
    return described({"tp": 2, "pp": 2, "dp": 2}, 40, hardware=TWO_NODES)


def moe() -> Job:
    return described({"tp": 2, "pp": 2, "dp": 2, "ep": 2}, 32, model=EXPERTS, software="megatron-core")


def interleaved() -> Job:
    return described({"tp": 4, "pp": 2, "virtual_stages": 2, "schedule": "interleaved"}, 36)


def zero_bubble() -> Job:
    return described({"tp": 2, "pp": 2, "dp": 2, "schedule": "zero_bubble"}, 48)


def fsdp2() -> Job:
    return described({"tp": 2, "dp": 4}, 48, sharding="fsdp2")


def hsdp() -> Job:
    return described({"tp": 2, "dp": 4, "dp_shard": 2}, 48, hardware=TWO_NODES, sharding="fsdp2")


def context_parallel() -> Job:
    return described({"tp": 2, "cp": 2, "pp": 2}, 20)


def deepspeed() -> Job:
    return described({"dp": 8}, 128, software="deepspeed", hardware=TWO_NODES, sharding="zero3")


def straggler() -> Job:
    return described({"tp": 2, "pp": 4}, 20, hardware=TWO_NODES, straggler=5)


def two_jobs() -> Job:
    """A dense and an FSDP2 job, each on every other node of four, whose leaves share thin uplinks."""
    fabric = {
        **TWO_NODES, "cluster.num_nodes": "4", "cluster.fabric": "leaf_spine", "cluster.nodes_per_leaf": "2",
        "cluster.spine_oversubscription": "8", "cluster.placement": "nodes:0,2,1,3",
    }  # fmt: skip
    first = described({"tp": 4, "pp": 2}, 16)
    second = described({"dp": 8}, 24, sharding="fsdp2")
    return Job(side_by_side(first.graph, second.graph), load_cluster("h100-16", fabric))


def slow_link() -> Job:
    hardware = {**TWO_NODES, "link.nic.1.2.out.bytes_per_s": "5GB/s", "link.nvlink.1.in.latency_s": "20us"}
    return described({"tp": 2, "pp": 4}, 20, hardware=hardware)


def noise() -> Job:
    return described({"tp": 2, "pp": 2, "dp": 2}, 12, setup=Setup(noise_sigma=0.05, seed=3))


TWELVE: dict[str, Callable[[], Job]] = {
    job.__name__: job
    for job in (
        dense, moe, interleaved, zero_bubble, fsdp2, hsdp, context_parallel, deepspeed,
        straggler, two_jobs, slow_link, noise,
    )
}  # fmt: skip


def from_catalog(name: str) -> Job:
    """A traced job on as many H800 as it has ranks, with the kernels that are usual for it."""
    graph = catalog.load(name)
    return Job(apply_kernels(graph, usual_kernels(graph)), load_cluster(f"h800-{graph.world_size}"))


def job_of(name: str) -> Job:
    """One of the twelve, or of the catalog."""
    return TWELVE[name]() if name in TWELVE else from_catalog(name)


def side_by_side(first: Graph, second: Graph) -> Graph:
    """One graph of two jobs: the second one's ranks follow the first one's."""
    ops, templates, world = len(first.ops), first.num_templates, first.world_size
    shifted = [
        replace(
            program,
            name=f"second {program.name}",
            ranks=tuple((start + world, stop + world, step) for start, stop, step in program.ranks),
            template=program.template + np.int32(templates),
        )
        for program in second.programs
    ]
    edges, frees = second.edges, second.frees
    return Graph(
        workload=replace(first.workload, name="two jobs", world_size=world + second.world_size, dims={}),
        groups={
            **{f"first {name}": replace(group, name=f"first {name}") for name, group in first.groups.items()},
            **{f"second {name}": _later(group, world) for name, group in second.groups.items()},
        },
        programs=(*first.programs, *shifted),
        ops=_stacked(
            replace(first.ops, group=_renamed(first.ops.group, "first")),
            replace(second.ops, group=_renamed(second.ops.group, "second")),
        ),
        edges=_stacked(
            first.edges,
            replace(edges, dst=edges.dst + ops, src=np.where(edges.src < 0, edges.src, edges.src + ops)),
        ),
        frees=_stacked(
            first.frees,
            replace(
                frees,
                template=frees.template + templates,
                after=np.where(frees.after < 0, frees.after, frees.after + ops),
                owner=np.where(frees.owner_scope == 0, frees.owner + ops, frees.owner),
            ),
        ),
        template_start=np.concatenate([first.template_start, second.template_start[1:] + ops]),
        template_names=(*first.template_names, *second.template_names),
    )


def _renamed(groups: Strings, job: str) -> Strings:
    return Strings(groups.codes, tuple(name and f"{job} {name}" for name in groups.values))


def _later(group: ProcessGroup, ranks: int) -> ProcessGroup:
    explicit = tuple(tuple(rank + ranks for rank in members) for members in group.explicit)
    return replace(group, name=f"second {group.name}", offset=group.offset + ranks, explicit=explicit)


def _stacked(first: Any, second: Any) -> Any:
    """Two tables of columns, one above the other."""
    columns = {}
    for name, above in vars(first).items():
        below = vars(second)[name]
        columns[name] = (
            Strings.encode([*above.tolist(), *below.tolist()])
            if isinstance(above, Strings)
            else np.concatenate([above, below])
        )
    return type(first)(**columns)
