"""Predicted step times of published training runs, by the way that every run goes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from simcore.graph import Graph
from simcore.hardware import load_cluster
from simcore.hardware.sustained import Sustained
from simcore.run import Ran, run
from simcore.units import s_from_ps
from workloads.jobs.published import Case
from workloads.parallel.generate import generate
from workloads.parallel.steady import between_groups, continued, shorter_counts

Overrides = tuple[tuple[str, str], ...]

#: Numbers under load by die, instead of those in the profiles.
Physics = Mapping[str, Sustained]


def case_key(case: Case) -> str:
    """Content hash of all that decides a case's step time."""
    parts = (
        case.model.model_copy(update={"name": ""}).model_dump_json(), case.parallel.model_dump_json(),
        case.training.model_dump_json(), case.software.model_copy(update={"name": ""}).model_dump_json(),
        case.die, case.cluster, repr(case.overrides),
    )  # fmt: skip
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def predict_case(case: Case, physics: Physics | None = None) -> float:
    """Seconds per step; long interleaved pipelines as ``workloads.parallel.steady`` continues them.

    Errors: InputError from the generator.
    """
    count = case.microbatches
    counts = shorter_counts(case.parallel, count)
    if counts is not None:
        few, more = counts
        shorter = simulated_s(case, few, physics)
        graph, longer = _simulated(case, more, physics)
        whole = continued(
            counts, (shorter, longer.step_s), _between_groups_s(graph, longer, more - few), count
        )
        if whole is not None:
            return whole
    return simulated_s(case, count, physics)


def simulated_s(case: Case, microbatches: int, physics: Physics | None = None) -> float:
    """Seconds of a step of so many microbatches, all of them simulated."""
    return _simulated(case, microbatches, physics)[1].step_s


def _simulated(case: Case, microbatches: int, physics: Physics | None) -> tuple[Graph, Ran]:
    held = (physics or {}).get(case.die)
    load = () if held is None else overrides_of(held)
    cluster = load_cluster(case.cluster, case.overrides + load)
    batch = microbatches * case.training.micro_batch * case.parallel.dp
    training = case.training.model_copy(update={"global_batch": batch})
    graph = generate(case.model, case.parallel, training, case.software)
    return graph, run(graph, cluster)


def _between_groups_s(graph: Graph, ran: Ran, group: int) -> float:
    """Time between the ends of the first two groups of microbatches on the last stage."""
    result = ran.result
    programs = [graph.programs[int(graph.program_of_rank[rank])] for rank in result.representatives.tolist()]
    last = max(range(len(programs)), key=lambda number: programs[number].stage)
    microbatch = graph.flat_ops(programs[last]).microbatch
    return s_from_ps(between_groups(microbatch, result.times[last].end_ps, group))


def overrides_of(held: Sustained) -> Overrides:
    """A die's numbers as ``load_cluster`` takes them."""
    return tuple((f"gpu.sustained.{key}", str(getattr(held, key))) for key in ("clock", "fp8", "spread"))
