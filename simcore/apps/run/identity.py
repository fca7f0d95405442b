"""What is asked, as a key: equal for questions of equal answer, however they are written."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

from simcore.apps.run.loading import with_node_latencies
from simcore.apps.run.question import digest, question_content
from simcore.apps.run.scenario import Scenario
from simcore.apps.run.simulation import setup_of
from simcore.apps.store import text_digest
from simcore.graph import graph_hash, load_graph
from simcore.hardware import ClusterSpec, load_cluster
from simcore.run import Setup
from workloads.jobs import Description

#: What decides a run's outcome beside the question: packages and modules whose text is part of the key.
_CODE: Final = {
    "simcore": (
        "analysis", "clock.py", "collectives", "cost", "elementary.py", "engine", "graph", "hardware",
        "interference", "memory", "network", "registry.py", "report/run_object.py", "run.py", "symmetry",
        "tables.py", "timeline", "units.py",
    ),
    "simcore.apps": ("run",),
    "workloads": ("evidence", "jobs", "models", "parallel"),
    "hardware_profiles": ("",),
}  # fmt: skip


def question_key(
    job: Description | str, cluster: ClusterSpec, setup: Setup, *, refuse_memory: bool = True
) -> str:
    """Hash of a complete ``job`` (a graph: its hash and kernels), its GPUs, how it is simulated, and by what.

    ``refuse_memory``: whether a job that does not fit is an answer.
    """
    content = question_content(job, cluster, setup, refuse_memory=refuse_memory)
    return digest({**content, "version": outcome_version()})


def scenario_key(scenario: Scenario, *, anew: bool = False) -> str:
    """The key of what ``run_sim.py`` is asked.

    ``anew``: files of clusters are read again, whoever asked before.
    Errors: InputError where job or cluster cannot be.
    """
    if anew:
        _loaded.cache_clear()
    settings = scenario.settings
    cluster = cluster_of(scenario)
    job: Description | str
    if scenario.described is None:
        assert scenario.graph_dir is not None, "a scenario has a graph or a description"
        job = f"{_hash_of(scenario.graph_dir)} {settings.kernels}"
    else:
        job = scenario.described.complete(cluster)
        cluster = _cluster(scenario, job.gpu) if job.gpu else cluster
    cluster = with_node_latencies(cluster, settings.nodes)
    return question_key(job, cluster, setup_of(scenario), refuse_memory=settings.refuse_memory)


def cluster_of(scenario: Scenario) -> ClusterSpec:
    """The cluster that a scenario names, with its settings of hardware; InputError where it cannot be."""
    return _cluster(scenario, {})


def outcome_version() -> str:
    """Hash of the code and profiles that decide outcomes."""
    return text_digest(_CODE)


def _cluster(scenario: Scenario, of_job: Mapping[str, str]) -> ClusterSpec:
    given = {**of_job, **scenario.settings.hardware}
    return _loaded(scenario.cluster, tuple(given.items()), scenario.force)


@lru_cache(maxsize=64)
def _loaded(name: str, given: tuple[tuple[str, str], ...], force: bool) -> ClusterSpec:
    return load_cluster(name, dict(given), force=force)


@lru_cache(maxsize=8)
def _hash_of(graph_dir: Path) -> str:
    return graph_hash(load_graph(graph_dir))
