"""Predicted step times of published training runs.

Note [Fewer microbatches]
    Once a pipeline is full, each further microbatch adds the same time, that of the slowest stage.  A step of
    many microbatches is therefore simulated at two smaller numbers and continued in a straight line; a test
    compares it with the whole step.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

from simcore.collectives import NcclPlanner
from simcore.cost import RooflineCost
from simcore.engine import simulate
from simcore.hardware import Topology, load_cluster
from workloads.parallel.generate import generate
from workloads.published import BoardPhysics, Case

#: Steps of at most this many microbatches beyond the pipeline's depth are simulated whole.
_WHOLE = 3


Overrides = tuple[tuple[str, str], ...]

#: Numbers by board; what is missing there is as the profile has it.
Physics = Mapping[str, BoardPhysics]


def case_key(case: Case) -> str:
    """Content hash of all that decides a case's step time."""
    parts = (
        case.model.model_copy(update={"name": ""}).model_dump_json(), case.parallel.model_dump_json(),
        case.training.model_dump_json(), case.software.model_copy(update={"name": ""}).model_dump_json(),
        case.board, case.cluster, repr(case.overrides), repr(case.microbatches),
    )  # fmt: skip
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def predict_case(case: Case, physics: Physics) -> float:
    """Seconds per step; see Note [Fewer microbatches].  Errors: InputError from the generator."""
    few, more, count = simulated_microbatches(case)
    last = simulated_s(case, more, physics)
    if count <= more:
        return last
    first = simulated_s(case, few, physics)
    return last + (count - more) * (last - first) / (more - few)


def simulated_microbatches(case: Case) -> tuple[int, int, float]:
    """(fewer, more, wanted): the two numbers that are simulated and the one that is asked for."""
    count, pp = case.microbatches, case.parallel.pp
    if pp == 1:
        return (2, _WHOLE, count) if count > _WHOLE else (0, max(1, math.ceil(count)), count)
    if case.parallel.copies > 1:
        # Two more at a time, one from each end.
        few, more = 2 * pp + 2, 2 * pp + 6
        return (few, more, count) if count > more else (0, max(2 * pp, 2 * math.ceil(count / 2)), count)
    if case.parallel.virtual_stages > 1:
        # Interleaving goes round in groups of pp microbatches; with pp of them it is all warm-up.
        few, more = 2 * pp, 3 * pp
        return (few, more, count) if count > more else (0, max(pp, round(count)), count)
    few = pp + 1
    more = pp + 4
    return (few, more, count) if count > more else (0, max(1, math.ceil(count)), count)


class _Clusters:
    """Topologies and planners of the clusters seen last: rows of one family share them."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, Overrides], tuple[Topology, NcclPlanner]] = {}

    def get(self, cluster: str, overrides: Overrides) -> tuple[Topology, NcclPlanner]:
        """Topology and planner, made once."""
        key = (cluster, overrides)
        if key not in self._made:
            if len(self._made) > 8:
                self._made.clear()
            topology = Topology(load_cluster(cluster, overrides))
            self._made[key] = topology, NcclPlanner(topology)
        return self._made[key]


_CLUSTERS = _Clusters()


def simulated_s(case: Case, microbatches: int, physics: Physics) -> float:
    """Seconds of a step of so many microbatches, all of them simulated."""
    training = case.training.model_copy(
        update={"global_batch": microbatches * case.training.micro_batch * case.parallel.dp}
    )
    graph = generate(case.model, case.parallel, training, case.software)
    board = physics.get(case.board)
    topology, planner = _CLUSTERS.get(
        case.cluster,
        case.overrides + (board.overrides(case.cluster, case.parallel.world_size) if board else ()),
    )
    fp32_math = "tf32" if case.training.precision == "tf32" else "ieee"
    cost = RooflineCost(topology.cluster.gpu, fp32_math=fp32_math)
    return simulate(graph, topology, cost, planner).step_ps / 1e12
