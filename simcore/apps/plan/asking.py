"""From arguments to a question."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from simcore.apps.amounts import Amount, numbers_of_gpus
from simcore.apps.run.launching import say_launch
from simcore.apps.run.scenario import resolve_scenario
from simcore.apps.run.scenario_file import SECTIONS
from simcore.apps.run.settings import split_pairs
from simcore.apps.run.simulation import setup_of
from simcore.errors import InputError, nearest
from simcore.hardware import cluster_names, load_cluster
from simcore.planning.question import Question
from simcore.records import dataclass

if TYPE_CHECKING:
    from workloads.jobs.launch import Launch

_FAMILY = "h100"
#: What a plan may be for; of one cluster the fastest strategy is the cheapest, too.
OBJECTIVES: Final = ("time", "cost", "gpus")
#: Keys that flags always say and that follow from a candidate's degrees.
_FOLLOWS = (
    "sequence_parallel", "stage_layers", "embedding_as_layer", "head_as_layer", "microbatch_group",
)  # fmt: skip


@dataclass(frozen=True)
class PlanRequest:
    """A question; ``cluster`` and ``given`` as ``run_sim.py`` takes them, without settings of the job.

    ``hardware``: what of those and of the job's software changes the cluster's profile.  ``kept``: keys of
    the job that are searched only where they are asked for.  ``launch``: the flags that the job comes from.
    """

    question: Question
    cluster: str
    given: Mapping[str, str]
    hardware: Mapping[str, str]
    kept: Collection[str]
    launch: Launch | None = None


def checked_limits(gap: float, budget_s: float, spare: float) -> None:
    """InputError for a share or a time that cannot be."""
    if not 0 <= spare < 1:
        raise InputError(f"--spare {spare:g}: a share of a GPU's memory, such as 0.06")
    if not 0 <= gap < 1:
        raise InputError(f"--gap {gap:g}: a share of the step, such as 0.02")
    if not 0 < budget_s <= 1e9 or math.isnan(budget_s):
        raise InputError(f"--budget {budget_s:g}: seconds, more than 0")


def clusters_asked(
    cluster: str | None,
    gpus: str | None,
    gpu: str | None,
    *,
    deadline: str | None,
    amount: Amount | None,
    tornado: bool,
) -> list[str | None]:
    """Clusters to plan for, the smallest first.  InputError for options that contradict each other.

    ``gpu``: kinds of clusters, with commas between.
    """
    if cluster is not None and (gpus or gpu):
        raise InputError("--cluster says how many GPUs there are: it goes without --gpus and --gpu")
    if gpu and not gpus:
        raise InputError("--gpu needs --gpus: how many")
    if deadline and amount is None:
        raise InputError("--deadline needs --tokens or --samples: of what it is the end")
    if not gpus:
        return [cluster]
    families = dict.fromkeys(word.strip() for word in (gpu or _FAMILY).split(","))
    for family in families:
        if family not in cluster_names():
            raise InputError(f"--gpu {family!r}{nearest(family, cluster_names())}")
    found: list[str | None] = [
        f"{family}-{number}" for number in numbers_of_gpus(gpus) for family in families
    ]
    if tornado and len(found) > 1:
        raise InputError("--tornado is for one cluster")
    return found


def checked_objective(objective: str, *, priced: bool) -> None:
    """InputError for what a plan cannot be for."""
    if objective == "energy":
        raise InputError(
            "--objective energy: energy is not modelled, as measured watts of kernels do not carry over from"
            " one GPU to another (docs/clocks.md)"
        )
    if objective not in OBJECTIVES:
        raise InputError(f"--objective {objective!r}{nearest(objective, OBJECTIVES)}")
    if objective == "cost" and not priced:
        raise InputError("--objective cost needs --prices: a TOML file of yours, or aws")


def asked_of_each(
    clusters: Sequence[str | None],
    amount: Amount | None,
    global_batch: int | None,
    *,
    workload: str | None,
    settings: Sequence[str],
    seq: int | None,
    framework: str | None,
    spare: float,
    launch: tuple[str, str] | None,
) -> list[PlanRequest]:
    """The same question for ``clusters``, the smallest first; a batch that is not said is the largest's.

    What cannot be (an ``amount`` that the job does not count) is known at once.
    """
    found: list[PlanRequest] = []
    for name in reversed(clusters):
        one = asked(
            workload, name, settings, launch=launch,
            global_batch=global_batch, seq=seq, framework=framework, spare=spare,
        )  # fmt: skip
        if not found:
            say_launch(one.launch)
        global_batch = one.question.ground.base.training.global_batch
        found.insert(0, one)
        if amount is not None:
            amount.of(*one.question.ground.length)
    return found


def asked(
    workload: str | None,
    cluster: str | None,
    settings: Sequence[str],
    *,
    global_batch: int | None = None,
    seq: int | None = None,
    framework: str | None = None,
    spare: float = 0.0,
    launch: tuple[str, str] | None = None,
) -> PlanRequest:
    """The question that arguments ask; ``launch`` as :func:`resolve_scenario` takes it.

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
    if workload is None and launch is None:
        raise InputError("what is planned for? A model's name, a config.json, a described job or flags")
    scenario = resolve_scenario(workload, cluster=cluster, settings=given, launch=launch)
    job, hardware = scenario.described, scenario.settings.hardware
    if job is None:
        raise InputError(f"{workload}: a plan is for a model's name, a config.json or a described job")
    setup = setup_of(scenario)
    wrong = {
        "--network": setup.network != "fluid", "rank.<n>.gpu": bool(setup.rank_gpus),
        "noise.sigma": setup.noise_sigma > 0, "node.<n>": bool(scenario.settings.nodes),
    }  # fmt: skip
    for name, given_so in wrong.items():
        if given_so:
            raise InputError(f"{name}: a plan is for the fluid network and equal ranks without noise")
    found = load_cluster(scenario.cluster, hardware)
    base = job.complete(found)
    batch = {"training.global_batch": str(base.training.global_batch)}
    parallel = job.content.get("parallel")
    if isinstance(parallel, Mapping):  # dp is what other degrees leave of the GPUs
        follows = {"dp"} if job.launch is None else {"dp", *_FOLLOWS}
        parallel = {key: value for key, value in parallel.items() if key not in follows}
    overrides = {key: text for key, text in {**job.overrides, **batch}.items() if key != "parallel.dp"}
    question = Question(
        content={**job.content, "parallel": parallel},
        where=job.where,
        folder=job.folder,
        overrides=overrides,
        cluster=load_cluster(scenario.cluster, {**base.gpu, **hardware}),
        setup=setup,
        spare=spare,
    )
    plain = {
        key: value for key, value in scenario.settings.given.items() if key.partition(".")[0] not in SECTIONS
    }
    kept = (
        question.said if job.launch is None else given.keys()
    )  # flags say everything: a place to start from
    return PlanRequest(question, scenario.cluster, plain, {**base.gpu, **hardware}, kept, job.launch)
