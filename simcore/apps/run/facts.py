"""What a run's record says of how it was simulated: origins of times, placement, assumptions, warnings."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from simcore.apps.progress import StageTimer
from simcore.apps.run.scenario import Scenario
from simcore.cost import ORIGINS
from simcore.engine import SimulationResult
from simcore.graph import Graph, graph_hash
from simcore.hardware import ClusterSpec, assumptions, hardware_hash
from simcore.hardware.record import unmeasured_fabric
from simcore.run import Ran
from simcore.timeline import RunFacts
from simcore.timeline.facts import origin_shares

if TYPE_CHECKING:
    from simcore.apps.run.settings import RunSettings

#: Share of kernel time: were rooflines off by a factor of two, a smaller one would add less than what fitted
#: products are off by (6.3%, docs/validation-kernels.md).  The summary names every share.
_ROOFLINE_WARNED = 0.05


def run_facts(
    scenario: Scenario,
    graph: Graph,
    cluster: ClusterSpec,
    ran: Ran,
    stages: StageTimer,
) -> RunFacts:
    """What is known of a run beside its graph and result, but for memory."""
    gpu, demands = cluster.gpu, ran.demands
    math_mode = peak_math(graph.workload.precision, _fp32_math(scenario, graph))
    origins = {}
    if demands is not None:
        alone_ps = demands.alone_ps(gpu.hbm_bytes_per_s)
        origins = origin_shares(graph, alone_ps, demands.origin, ORIGINS)
    warnings = list(ran.warnings)
    if origins.get("roofline", 0.0) > _ROOFLINE_WARNED:
        warnings.append(
            f"{origins['roofline']:.1%} of kernel time is a roofline estimate: published or assumed rates,"
            " not fitted to measured kernels"
        )
    if origins.get("extrapolated"):
        warnings.append(
            f"{origins['extrapolated']:.1%} of kernel time is extrapolated: kernels were fitted on GPUs of"
            f" generation {gpu.table('cost')} with other SMs (their number, or products per clock)"
        )
    if scenario.settings.tables and not origins.get("measured"):
        names = ", ".join(table.source for table in scenario.settings.tables)
        warnings.append(f"{names} covers no kernel of this workload")
    unmeasured = unmeasured_fabric(cluster)
    if unmeasured and graph.world_size > cluster.gpus_per_domain:
        warnings.append(unmeasured)
    return RunFacts(
        cluster=dataclasses.asdict(cluster),
        network=scenario.network,
        graph_hash=graph_hash(graph),
        profile_hash=hardware_hash(cluster),
        seed=scenario.seed,
        settings={**scenario.settings.given, **(scenario.described.overrides if scenario.described else {})},
        memory=(),
        peak_flops_per_s=gpu.peak_flops.get(math_mode, 0.0),
        peak_math=math_mode,
        origins=origins,
        assumptions=(*_run_assumptions(scenario, graph, cluster, ran), *assumptions(cluster)),
        warnings=tuple(warnings),
        wall_s=dict(stages.seconds),
    )


def _fp32_math(scenario: Scenario, graph: Graph) -> str:
    return "tf32" if graph.workload.precision == "tf32" else scenario.settings.fp32_math


def peak_math(precision: str, fp32_math: str) -> str:
    """The math mode whose peak MFU is measured against: what the matrix products run in."""
    if precision in ("fp32", "float32", ""):
        return "tf32" if fp32_math == "tf32" else "fp32"
    return {"bfloat16": "bf16", "float16": "fp16"}.get(precision, precision)


def placement(graph: Graph, cluster: ClusterSpec) -> str:
    """Which GPUs of the cluster the ranks run on."""
    if cluster.placement == "round_robin":
        return f"ranks are dealt to the {cluster.num_nodes} nodes of {cluster.name} in turn"
    if cluster.placement == "listed":
        gpus = cluster.placed_gpus[: graph.world_size]
        used = len({gpu // cluster.gpus_per_node for gpu in gpus})
        nodes = f"{used} nodes" if used > 1 else "a node"
        return f"ranks run on {len(gpus)} listed GPUs of {nodes} of {cluster.name}"
    if graph.world_size == cluster.num_gpus:
        return f"ranks fill nodes in order: all {cluster.num_gpus} GPUs of {cluster.name}"
    last = (graph.world_size - 1) // cluster.gpus_per_node
    nodes = f"nodes 0 to {last}" if last else "node 0"
    return (
        f"ranks fill nodes in order: {graph.world_size} of the {cluster.num_gpus} GPUs of {cluster.name},"
        f" {nodes}; the others stay idle"
    )


def _randomness(scenario: Scenario) -> str:
    sigma = scenario.settings.noise_sigma
    if not sigma:
        return "nothing is random: the seed is recorded and not used"
    return f"kernel times have log-normal noise of sigma {sigma:g}, seed {scenario.seed}"


def _folding(result: SimulationResult) -> str:
    simulated, ranks = len(result.representatives), len(result.class_of)
    if simulated == ranks:
        return "every rank is simulated by itself; none stands for another"
    return f"{simulated} ranks are simulated, one for each class of ranks that must behave alike; exact"


def _run_assumptions(scenario: Scenario, graph: Graph, cluster: ClusterSpec, ran: Ran) -> tuple[str, ...]:
    return (
        placement(graph, cluster),
        *ran.assumptions,
        *(() if scenario.described else (_build(graph, scenario.settings),)),
        *filter(None, [graph.workload.options.get("not_run")]),
        f"fp32 matrix products in {_fp32_math(scenario, graph)} math",
        *(f"measured times of {table.source} where it covers a kernel" for table in scenario.settings.tables),
        _folding(ran.result),
        _randomness(scenario),
        "MFU counts forward and backward flops, causal attention once; HFU all that is executed",
    )


def _build(graph: Graph, settings: RunSettings) -> str:
    """Which build's kernels a traced program is said to launch."""
    applied = graph.workload.options.get("kernels", "unfused")
    chosen = "" if settings.kernels else f", as is usual for {graph.workload.precision}"
    return f"kernels as a {applied!r} build launches them{chosen}"
