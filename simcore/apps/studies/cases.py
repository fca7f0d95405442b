"""What is compared: collectives alone on three kinds of fabric, and jobs that share links."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Final

from simcore.collectives.plan import CollectivePlan
from simcore.collectives.planner import NcclPlanner
from simcore.hardware.load import load_cluster
from simcore.hardware.specs import ClusterSpec
from simcore.hardware.topology import Topology
from simcore.records import dataclass
from simcore.units import KIB, MIB, PS_PER_US, format_bytes

_GPUS_PER_NODE: Final = 8
_OVERSUBSCRIPTION: Final = {"oversubscribed": 2.0, "colliding": 4.0}
_SIZES: Final = (64 * KIB, MIB, 8 * MIB, 64 * MIB, 1024 * MIB)
_QUICK_SIZES: Final = (64 * KIB, 8 * MIB, 1024 * MIB)
#: (collective, NCCL_ALGO); all_to_all and send/recv know only one way.
_COLLECTIVES: Final = (
    ("all_reduce", "ring"),
    ("all_reduce", "tree"),
    ("all_gather", "ring"),
    ("reduce_scatter", "ring"),
    ("broadcast", "ring"),
    ("all_to_all", "ring"),
)
#: Where the packets of one case would take minutes, fewer cases of the same kind stand for it.
_LARGE_RANKS: Final = 128
_LARGE: Final = (("all_reduce", "ring"), ("all_reduce", "tree"), ("all_to_all", "ring"))
_LARGE_SIZES: Final = (MIB, 64 * MIB, 1024 * MIB)


@dataclass(frozen=True)
class PlanSequence:
    """Plans that run one after another from ``start_ps``; ``reported``: a row of the results."""

    name: str
    plans: tuple[CollectivePlan, ...]
    start_ps: int = 0
    reported: bool = True


@dataclass(frozen=True)
class TrafficCase:
    """Jobs that run at the same time on one topology."""

    name: str
    topology_name: str
    topology: Topology
    jobs: tuple[PlanSequence, ...]


def traffic_cases(quick: bool = False) -> Iterator[TrafficCase]:
    """All traffic_cases of the study, the smallest first; ``quick``: a sample that takes under a minute."""
    yield from _alone(quick)
    yield from _colliding(quick)
    yield from _sends_under_all_reduce(quick)


@cache
def fabric(name: str, num_gpus: int) -> Topology:
    """H800 nodes on one of the study's fabrics: nvswitch, rail, or leaf-spine with two nodes per leaf.

    "oversubscribed" has half of the NICs' bandwidth above each leaf, "colliding" a quarter: less than the
    rings of two jobs want together.
    """
    cluster: ClusterSpec = load_cluster("h800-96")
    cluster = replace(cluster, name=name, num_nodes=-(-num_gpus // _GPUS_PER_NODE))
    ratio = _OVERSUBSCRIPTION.get(name)
    if ratio is not None:
        cluster = replace(cluster, fabric="leaf_spine", nodes_per_leaf=2, spine_oversubscription=ratio)
    return Topology(cluster)


@cache
def _planner(topology: Topology, algorithm: str) -> NcclPlanner:
    return NcclPlanner(topology, algorithm=algorithm, protocol="Simple")


def _alone(quick: bool) -> Iterator[TrafficCase]:
    wanted: tuple[tuple[str, int], ...] = (("nvswitch", 8), ("rail", 32), ("oversubscribed", 32))
    if not quick:
        wanted = (*wanted, ("rail", 16), ("rail", 64), ("oversubscribed", 64))
        wanted = (*wanted, ("rail", _LARGE_RANKS), ("oversubscribed", _LARGE_RANKS))
    for name, ranks in wanted:
        topology = fabric(name, ranks)
        large = ranks >= _LARGE_RANKS
        sizes = _QUICK_SIZES if quick else _LARGE_SIZES if large else _SIZES
        for size in sizes:
            for collective, algorithm in _LARGE if large else _COLLECTIVES:
                plan = _planner(topology, algorithm).plan(collective, size, range(ranks))
                job = PlanSequence(f"{collective} {plan.algorithm}", (plan,))
                yield TrafficCase(f"{job.name} {format_bytes(size)} x{ranks} {name}", name, topology, (job,))
            job = PlanSequence("send_recv", (_planner(topology, "ring").plan_p2p(size, 0, ranks - 1),))
            yield TrafficCase(f"send_recv {format_bytes(size)} 0-{ranks - 1} {name}", name, topology, (job,))


def _colliding(quick: bool) -> Iterator[TrafficCase]:
    """Two jobs, on every other node each: every hop of both rings shares the leaves' uplinks."""
    topology = fabric("colliding", 64)
    even = tuple(g for g in range(64) if not topology.node_of(g) % 2)
    odd = tuple(g for g in range(64) if topology.node_of(g) % 2)
    planner = _planner(topology, "ring")
    for size in (64 * MIB,) if quick else (MIB, 16 * MIB, 256 * MIB):
        whole = planner.plan("all_reduce", size, even)
        pairs = {
            "equal": (planner.plan("all_reduce", size, odd), 0),
            "half": (planner.plan("all_reduce", size // 2, odd), 0),
            "late": (planner.plan("all_reduce", size, odd), 200 * PS_PER_US),
            "all_to_all": (planner.plan("all_to_all", size, odd), 0),
        }
        for kind, (other, start_ps) in pairs.items():
            jobs = (PlanSequence("first", (whole,)), PlanSequence("second", (other,), start_ps))
            yield TrafficCase(f"collide {kind} {format_bytes(size)}", "two jobs, 4:1", topology, jobs)
    node, size = fabric("nvswitch", 8), 64 * MIB
    both = tuple(
        PlanSequence(collective, (_planner(node, "ring").plan(collective, size, range(8)),))
        for collective in ("all_reduce", "all_to_all")
    )
    yield TrafficCase(f"collide in node {format_bytes(size)}", "two jobs, NVSwitch", node, both)


def _sends_under_all_reduce(quick: bool) -> Iterator[TrafficCase]:
    """Gradients of a stage are reduced while activations go to the next stage over the same NICs.

    "per rail": data-parallel groups of GPUs with one local_rank, as with tensor parallelism 8; "whole node":
    one group of all GPUs of a stage's nodes.
    """
    topology = fabric("rail", 32)
    planner = _planner(topology, "ring")
    for size, message in ((64 * MIB, 8 * MIB),) if quick else ((16 * MIB, 4 * MIB), (256 * MIB, 32 * MIB)):
        count = 4
        sends = tuple(
            PlanSequence(
                f"sends {gpu}", (planner.plan_p2p(message, gpu, gpu + 16),) * count, reported=gpu == 0
            )
            for gpu in range(16)
        )
        per_rail = tuple(
            PlanSequence(
                f"all_reduce {local}",
                (planner.plan("all_reduce", size, (local, local + 8)),),
                reported=local == 0,
            )
            for local in range(8)
        )
        whole = (PlanSequence("all_reduce", (planner.plan("all_reduce", size, range(16)),)),)
        for kind, reduces in (("per rail", per_rail), ("whole node", whole)):
            name = f"sends under all_reduce {kind} {format_bytes(size)}"
            yield TrafficCase(name, "sends under all_reduce", topology, (*reduces, *sends))
