"""From arguments to a question."""

from __future__ import annotations

from collections.abc import Sequence

from simcore.apps.run.scenario import resolve_scenario
from simcore.apps.run.settings import split_pairs
from simcore.errors import InputError
from simcore.hardware import load_cluster
from simcore.planning.question import Question


def asked(
    workload: str,
    cluster: str | None,
    settings: Sequence[str],
    *,
    global_batch: int | None = None,
    seq: int | None = None,
    framework: str | None = None,
) -> Question:
    """The question that arguments ask.

    A job without a batch gets that of its completion: candidates need one in common.
    Errors: InputError for a workload that is no description, or anything else that ``run_sim.py`` refuses.
    """
    given = split_pairs(settings)
    options = {
        "training.global_batch": global_batch, "training.seq": seq, "software.preset": framework,
    }  # fmt: skip
    for key, value in options.items():
        if value is not None and given.setdefault(key, f"{value}") != f"{value}":
            raise InputError(f"--set {key}={given[key]} contradicts {value}")
    scenario = resolve_scenario(workload, cluster=cluster, settings=given)
    job, hardware = scenario.described, scenario.settings.hardware
    if job is None:
        raise InputError(f"{workload}: a plan is for a model's name, a config.json or a described job")
    found = load_cluster(scenario.cluster, hardware)
    base = job.complete(found.num_gpus, found.gpu.generation)
    return Question(
        content=job.content,
        where=job.where,
        folder=job.folder,
        overrides={**job.overrides, "training.global_batch": str(base.training.global_batch)},
        cluster=load_cluster(scenario.cluster, {**base.gpu, **hardware}),
    )
