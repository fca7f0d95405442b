"""DistSim's strategy search again: BERT-exLarge on 16 A10, every split of 16 into M x P x D.

arXiv 2306.08423, use case: 48 layers, 16 sequences a step, 4 nodes of 4 GPUs.  It gives steps per second of
the best and the worst of the 15 strategies and names the best, 2M1P8D.  What it leaves open (see
``Assumptions``) is varied, as for published runs of quality B.

Note [What the search leaves open]
    A grid over what decides the order: how many microbatches a pipeline gets, the network, and whether
    gradients are summed beside the backward pass; around one choice of these, one further input at a time.
    The choice: PyTorch's defaults (fp32, eager kernels), BERT's 512 tokens, DDP's overlap, a port of 100 Gb/s
    for two GPUs, pipelines within nodes (the paper's hierarchy MP, PP, DP), and a replica's samples in one
    microbatch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal, NamedTuple

from simcore.apps.measured.runs.cache import StepTimes
from simcore.apps.measured.runs.predict import case_key
from simcore.apps.measured.runs.score import predict_cases
from simcore.apps.progress import Countdown
from simcore.errors import SimcoreError
from simcore.records import dataclass
from workloads.jobs.published import Case
from workloads.models.software import SoftwareSpec
from workloads.models.spec import ModelSpec
from workloads.parallel.spec import ParallelSpec, TrainingSpec

#: The search's best and worst steps per second (predicted, measured) and their ratio.
PUBLISHED: Final = {"best": (2.94, 2.97), "worst": (0.398, 0.396), "ratio": (7.379, 7.488)}
PUBLISHED_BEST: Final = "2M1P8D"

_GPUS: Final = 16
_BATCH: Final = 16
_MODEL: Final = ModelSpec(
    name="BERT-exLarge", family="bert", layers=48, hidden=1024, heads=16, ffn=4096, vocab=30522
)
_MIB: Final = 2**20


class Strategy(NamedTuple):
    """Tensor-parallel (M), pipeline (P) and data-parallel (D) degrees."""

    tp: int
    pp: int
    dp: int

    @property
    def name(self) -> str:
        """As DistSim writes it."""
        return f"{self.tp}M{self.pp}P{self.dp}D"


_POWERS: Final = tuple(2**k for k in range(_GPUS.bit_length()))
STRATEGIES: Final = tuple(
    Strategy(tp, pp, _GPUS // (tp * pp)) for tp in _POWERS for pp in _POWERS if tp * pp <= _GPUS
)

Microbatches = Literal["one", "four", "samples"]


@dataclass(frozen=True)
class Assumptions:
    """Inputs that are not published.

    ``microbatches``: a replica's samples go through a pipeline as "one", as "four" (where it has so many), or
    as "samples", one each, also where there is no pipeline.  ``ports``: of 100 Gb/s, per node.  ``order``:
    the fastest axis of the ranks first.  ``clock``: SM clock over the profile's, which is for 150 W.
    """

    name: str
    microbatches: Microbatches = "one"
    ports: int = 2
    overlap: bool = True
    order: str = "tp-cp-ep-pp-dp"
    precision: Literal["fp32", "fp16"] = "fp32"
    seq: int = 512
    fused: bool = False
    clock: float = 1.0

    def case(self, strategy: Strategy) -> Case:
        """The strategy's training step."""
        share = _BATCH // strategy.dp
        most = {"one": 1, "four": 4 if strategy.pp > 1 else 1, "samples": share}[self.microbatches]
        count = min(most, share)
        training = TrainingSpec(
            micro_batch=share // count, global_batch=_BATCH, seq=self.seq, precision=self.precision,
            param_gather_dtype=self.precision, grad_dtype=self.precision, grad_reduce_dtype=self.precision,
            overlap_grad_reduce=self.overlap, bucket_bytes=25 * _MIB if self.overlap else 0,
        )  # fmt: skip
        eager = SoftwareSpec(
            attention="unfused", bias_activation_fusion=False, bias_dropout_fusion=False,
            softmax_fusion=False, grad_accumulation_fusion=False, async_tp_reduce=False,
            cross_entropy="unfused",
        )  # fmt: skip
        return Case(
            _MODEL,
            ParallelSpec(tp=strategy.tp, pp=strategy.pp, dp=strategy.dp, order=self.order),
            training,
            SoftwareSpec(attention="unfused") if self.fused else eager,
            "",
            f"a10-{_GPUS}",
            (("cluster.nics_per_node", str(self.ports)), ("gpu.clock", f"{self.clock:g}")),
        )


REFERENCE: Final = Assumptions("the choice")

_FED: Final[tuple[Microbatches, ...]] = ("one", "four", "samples")

#: Combinations of what decides the order.
GRID: Final = tuple(
    Assumptions("", microbatches, ports, overlap)
    for microbatches in _FED
    for ports in (1, 2, 4)
    for overlap in (True, False)
)

#: The choice with one further input changed.
VARIANTS: Final = (
    replace(REFERENCE, name="one port per node", ports=1),
    replace(REFERENCE, name="a port per GPU", ports=4),
    replace(REFERENCE, name="gradients summed behind the backward pass", overlap=False),
    replace(
        REFERENCE, name="pipelines over nodes, replicas within (Megatron-LM's order)", order="tp-cp-ep-dp-pp"
    ),
    replace(REFERENCE, name="fused elementwise kernels", fused=True),
    replace(REFERENCE, name="clock 20% lower", clock=0.8),
    replace(REFERENCE, name="fp16, its gradients too", precision="fp16"),
    replace(REFERENCE, name="128 tokens", seq=128),
    replace(REFERENCE, name="four microbatches in pipelines", microbatches="four"),
    replace(REFERENCE, name="microbatches of one sample", microbatches="samples"),
)


@dataclass(frozen=True)
class StrategySearch:
    """Steps per second of each strategy under one set of assumptions."""

    assumptions: Assumptions
    steps_per_s: Mapping[str, float]

    @property
    def order(self) -> list[str]:
        """Names of strategies, the fastest first."""
        return sorted(self.steps_per_s, key=lambda name: -self.steps_per_s[name])

    @property
    def best(self) -> str:
        """The fastest."""
        return self.order[0]

    @property
    def worst(self) -> str:
        """The slowest."""
        return self.order[-1]

    @property
    def ratio(self) -> float:
        """Fastest over slowest."""
        return self.steps_per_s[self.best] / self.steps_per_s[self.worst]

    @property
    def place(self) -> int:
        """Place of the published best strategy, counted from 1."""
        return self.order.index(PUBLISHED_BEST) + 1


def search(
    assumptions: Iterable[Assumptions] = (REFERENCE, *GRID, *VARIANTS), *,
    strategies: Sequence[Strategy] = STRATEGIES, times: StepTimes | None = None,
) -> list[StrategySearch]:  # fmt: skip
    """Every strategy under every set of assumptions, on all cores; ``times`` knows earlier step times.

    Errors: SimcoreError where a strategy cannot be simulated.
    """
    wanted = list(assumptions)
    keys = {
        (chosen, strategy.name): case
        for chosen in wanted
        for strategy in strategies
        for case in (chosen.case(strategy),)
    }
    cases = {case_key(case): case for case in keys.values()}
    found = predict_cases(cases, progress=Countdown("DistSim's search"), times=times)
    refused = next((reason for reason in found.values() if isinstance(reason, str)), "")
    if refused:
        raise SimcoreError(refused)
    return [
        StrategySearch(
            chosen,
            {s.name: 1 / float(found[case_key(keys[chosen, s.name])]) for s in strategies},
        )
        for chosen in wanted
    ]


def kendall_of_orders(first: StrategySearch, second: StrategySearch) -> float:
    """Rank correlation of two searches' orders; 1 is the same."""
    place = {name: k for k, name in enumerate(second.order)}
    ranks = [place[name] for name in first.order]
    pairs = list(itertools.combinations(ranks, 2))
    return sum(1 if a < b else -1 for a, b in pairs) / len(pairs) if pairs else math.nan
