"""What to check where a log alone tells that a run is slow, by what it would gain: each is simulated.

Two kinds.  Choices of the job that would be faster, as the launch leaves them out: what they gain is known.
Faults of the machine: how slow a resource would have to be to explain the measured step, all else as
expected; what mending it gains is the gap, or as much of it as a resource at :data:`_LEAST` explains.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from simcore.apps.run.loading import loaded
from simcore.apps.run.simulation import setup_of
from simcore.apps.run.tornado import changed_cluster
from simcore.errors import InfeasibleError, InputError, OutOfMemoryError
from simcore.records import dataclass
from simcore.run import run

if TYPE_CHECKING:
    from simcore.apps.run.scenario import Scenario
    from simcore.graph import Graph
    from simcore.hardware import ClusterSpec
    from workloads.jobs import Description

#: Gains below this share of the step are no advice, and the least share of a resource that is tried.
_WORTH: Final = 0.005
_LEAST: Final = 0.25
_CLOSE: Final = 0.01
_TRIALS: Final = 3


@dataclass(frozen=True)
class Check:
    """``gain_s`` a step at most; ``certain``: a choice of the job, or in the log; ``advice``: what to do."""

    name: str
    gain_s: float
    advice: str
    certain: bool = False

    def as_object(self) -> dict[str, Any]:
        """For JSON."""
        return dataclasses.asdict(self)


#: Choices that cost nothing but a flag: a name, settings, and for which jobs they are one.
_CHOICES: Final[tuple[tuple[str, Mapping[str, str], Callable[[Description], bool]], ...]] = (
    (
        "gradients reduced, parameters gathered beside compute",
        {"training.overlap_grad_reduce": "true", "training.overlap_param_gather": "true"},
        lambda job: job.parallel.dp > 1
        and job.training.sharding == "zero1"
        and not (job.training.overlap_grad_reduce and job.training.overlap_param_gather),
    ),
    (
        "gradients reduced beside compute",
        {"training.overlap_grad_reduce": "true"},
        lambda job: job.parallel.dp > 1
        and job.training.sharding in ("ddp", "zero2")
        and not job.training.overlap_grad_reduce,
    ),
    (
        "sequence parallelism", {"parallel.sequence_parallel": "true"},
        lambda job: job.parallel.tp > 1 and not job.parallel.sequence_parallel,
    ),
    (
        "tensor-parallel communication beside products", {"training.tp_overlap": "true"},
        lambda job: job.parallel.tp > 1 and job.parallel.sequence_parallel and not job.training.tp_overlap,
    ),
    (
        "messages between stages beside compute", {"training.overlap_p2p": "true"},
        lambda job: job.parallel.virtual_stages > 1 and not job.training.overlap_p2p,
    ),
    (
        "fused attention", {"software.attention": "cudnn"},
        lambda job: job.software.attention in ("unfused", "eager"),
    ),
    (
        "fused kernels",
        {
            f"software.{name}": "true"
            for name in ("bias_activation_fusion", "bias_dropout_fusion", "norm_fusion", "rope_fusion",
                         "swiglu_fusion", "softmax_fusion", "grad_accumulation_fusion")
        },
        lambda job: not all((job.software.norm_fusion, job.software.swiglu_fusion, job.software.rope_fusion)),
    ),
    (
        "no recomputation", {"training.recompute": "none"},
        lambda job: job.training.recompute == "selective",
    ),
    (
        "recomputation of attention alone", {"training.recompute": "selective"},
        lambda job: job.training.recompute == "full",
    ),
    ("no recomputation at all", {"training.recompute": "none"}, lambda job: job.training.recompute == "full"),
)  # fmt: skip

#: Resources: a name, the part of a cluster and the key of its number, and what to look at.
_RESOURCES: Final = (
    (
        "clocks of all GPUs", "gpu", "clock",
        "nvidia-smi -q -d CLOCK,POWER,PERFORMANCE under load: power caps, heat, application clocks",
    ),
    (
        "NICs", "cluster", "nic_bytes_per_s",
        "all_reduce_perf (nccl-tests) between nodes, NCCL_DEBUG=INFO: all rails? GPUDirect?; ibstat",
    ),
    (
        "NVLink", "gpu", "nvlink_bytes_per_s",
        "all_reduce_perf within a node, nvidia-smi nvlink -s and topo -m, NCCL_P2P_DISABLE",
    ),
)  # fmt: skip


class Checks:
    """Of one job; ``expected_s`` is its step as it is."""

    def __init__(self, scenario: Scenario, expected_s: float) -> None:
        self._scenario, self._expected_s = scenario, expected_s

    def choices(self, progress: Callable[[float], None] = lambda _: None) -> list[Check]:
        """What of the job could be chosen faster, as far as it fits; of a traced one nothing is known."""
        job = loaded(self._scenario).description
        wanted = [one for one in _CHOICES if job is not None and one[2](job)]
        found = []
        for number, (name, settings, _) in enumerate(wanted):
            progress(number / len(wanted))
            step_s = self._step_of(settings)
            if step_s is not None and self._expected_s - step_s > _WORTH * self._expected_s:
                words = " ".join(f"--set {key}={value}" for key, value in settings.items())
                found.append(Check(name, self._expected_s - step_s, words, certain=True))
        return _largest(found)

    def faults(self, gap_s: float, progress: Callable[[float], None] = lambda _: None) -> list[Check]:
        """What of the machine could be slower than expected, and how slow it would be."""
        scenario = self._scenario
        graph, cluster = _ready(scenario)
        found = []
        for number, (name, part, key, advice) in enumerate(_RESOURCES):
            progress(number / (len(_RESOURCES) + 1))

            def step_s(factor: float, part: str = part, key: str = key) -> float:
                on = changed_cluster(scenario.cluster, scenario.settings.hardware, cluster, part, key, factor)
                return run(graph, on, setup_of(scenario)).step_s

            found += _fault(name, advice, self._expected_s, gap_s, step_s)
        if graph.world_size > 1:
            progress(len(_RESOURCES) / (len(_RESOURCES) + 1))

            def with_slow_rank(factor: float) -> float:
                slow = scenario.with_settings({"rank.0.gpu.clock": repr(factor)})
                return run(graph, cluster, setup_of(slow)).step_s

            advice = (
                "step times or kernel times by rank (dcgm, a trace of each node): one that is always last"
            )
            found += _fault("one GPU's clock", advice, self._expected_s, gap_s, with_slow_rank)
        return _largest(found)

    def _step_of(self, settings: Mapping[str, str]) -> float | None:
        """The step with other choices; None where they cannot be, or do not fit."""
        try:
            scenario = self._scenario.with_settings(settings)
            found = loaded(scenario)
            found.fits(found.graph, found.cluster, scenario)
            return run(found.graph, found.cluster, setup_of(scenario)).step_s
        except (InputError, OutOfMemoryError, InfeasibleError):
            return None


def _fault(
    name: str, advice: str, expected_s: float, gap_s: float, step_s: Callable[[float], float]
) -> list[Check]:
    """How slow a resource must be for a step to take ``gap_s`` longer than expected.

    A step is nearly a straight line over the inverse of a resource: the secant is followed.
    """
    most = step_s(_LEAST) - expected_s
    if most < _WORTH * expected_s:
        return []
    if most < gap_s:
        told = f"even at {_LEAST:.0%} of what is expected it explains no more"
        return [Check(name, most, f"{told}; {advice}")]
    low, high = (1.0, 0.0), (1 / _LEAST, most)
    inverse = 1.0
    for _ in range(_TRIALS):
        inverse = low[0] + (gap_s - low[1]) * (high[0] - low[0]) / (high[1] - low[1])
        there = step_s(1 / inverse) - expected_s
        if abs(there - gap_s) < _CLOSE * gap_s:
            break
        low, high = (low, (inverse, there)) if there > gap_s else ((inverse, there), high)
    return [Check(name, gap_s, f"at {1 / inverse:.0%} of what is expected it explains the gap; {advice}")]


def _ready(scenario: Scenario) -> tuple[Graph, ClusterSpec]:
    """The graph as it is played, and its cluster."""
    from simcore.graph import apply_kernels, usual_kernels

    found = loaded(scenario)
    graph = found.graph
    if found.description is None and (kernels := scenario.settings.kernels or usual_kernels(graph)):
        graph = apply_kernels(graph, kernels)
    return graph, found.cluster


def _largest(checks: list[Check]) -> list[Check]:
    return sorted(checks, key=lambda check: -check.gain_s)
