"""DistSim's strategy search again: BERT-exLarge on 16 A10, every split of 16 into M x P x D.

arXiv 2306.08423, section on searching strategies: 48 layers, global batch 16, 4 nodes of 4 GPUs.  Sequence
length, precision and network are not published: BERT's 512 tokens, fp32, microbatches of one sample, and the
cluster profile ``a10``.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from simcore.collectives import NcclPlanner
from simcore.cost import RooflineCost
from simcore.engine import simulate
from simcore.hardware import Topology, load_cluster
from workloads.models.software import SoftwareSpec
from workloads.models.spec import ModelSpec
from workloads.parallel.generate import generate
from workloads.parallel.spec import ParallelSpec, TrainingSpec

#: The search's best and worst steps per second (predicted, measured) and their ratio.
PUBLISHED: Final = {"best": (2.94, 2.97), "worst": (0.398, 0.396), "ratio": (7.379, 7.488)}

_GPUS: Final = 16
_MODEL: Final = ModelSpec(
    name="BERT-exLarge", family="bert", layers=48, hidden=1024, heads=16, ffn=4096, vocab=30522
)


class Strategy(NamedTuple):
    """Tensor-parallel (M), pipeline (P) and data-parallel (D) degrees, and steps per second."""

    tp: int
    pp: int
    dp: int
    steps_per_s: float

    @property
    def name(self) -> str:
        """As DistSim writes it."""
        return f"{self.tp}M{self.pp}P{self.dp}D"


def ranking() -> list[Strategy]:
    """All strategies, the fastest first."""
    cluster = load_cluster(f"a10-{_GPUS}")
    topology = Topology(cluster)
    planner, cost = NcclPlanner(topology), RooflineCost(cluster.gpu)
    training = TrainingSpec(
        micro_batch=1, global_batch=_GPUS, seq=512, precision="fp32", param_gather_dtype="fp32"
    )
    powers = [2**k for k in range(_GPUS.bit_length())]
    found = []
    for tp, pp in ((tp, pp) for tp in powers for pp in powers if tp * pp <= _GPUS):
        parallel = ParallelSpec(tp=tp, pp=pp, dp=_GPUS // (tp * pp))
        graph = generate(_MODEL, parallel, training, SoftwareSpec(attention="unfused"))
        step_s = simulate(graph, topology, cost, planner).step_ps / 1e12
        found.append(Strategy(tp, pp, parallel.dp, 1 / step_s))
    return sorted(found, key=lambda strategy: -strategy.steps_per_s)
