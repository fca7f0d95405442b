"""What to simulate: a workload, a cluster, a network model and settings, from arguments or a YAML file.

A workload is a graph (a catalog name, a folder) or a description: a YAML file that says model, parallel,
training and software, a Hugging Face config.json, or the name of a model.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Final, TypeVar

from simcore.apps.run.scenario_file import SECTIONS, ScenarioFile, file_of
from simcore.apps.run.settings import KEYS, RunSettings, parse_settings
from simcore.errors import InputError, nearest
from simcore.hardware import DEFAULT_CLUSTER, load_cluster
from simcore.outside import read_text, there, yaml_document
from simcore.records import dataclass
from workloads import catalog

if TYPE_CHECKING:
    from simcore.hardware import ClusterSpec
    from workloads.jobs import Assumed, Description
    from workloads.jobs.launch import Launch

T = TypeVar("T")

NETWORKS: Final = ("alphabeta", "fluid", "packet")
#: What a description runs on when nothing is said: one scalable unit of a DGX SuperPOD.
_FAMILY: Final = "h100"
_DESCRIBED_CLUSTER: Final = f"{_FAMILY}-256"
#: Its GPUs of a node.
_NODE: Final = 8


@dataclass(frozen=True)
class DescribedJob:
    """A description as written: its sections, where it stands, and settings that change it.

    ``launch``: what of another program's flags the sections do not say.
    """

    content: Mapping[str, Any]
    where: str
    folder: Path | None  # that of the file, None where the user names model and software
    overrides: Mapping[str, str]
    launch: Launch | None = None

    @property
    def said(self) -> dict[str, str]:
        """What is said of it beside its name or file, as settings; not what a file or flags say."""
        sections: Mapping[str, Any] = {} if self.folder or self.launch else self.content
        values = {
            f"{section}.{key}": f"{value}".lower() if isinstance(value, bool) else f"{value}"
            for section in SECTIONS
            if isinstance(content := sections.get(section), Mapping)
            for key, value in content.items()
            if key != section
        }
        return {**values, **self.overrides}

    def complete(self, cluster: ClusterSpec) -> Description:
        """The job on a cluster, its layout chosen where it says none.  InputError where it cannot be."""
        # Most scenarios are graphs, and most jobs say how they are laid out: they start without.
        from workloads.jobs import complete
        from workloads.jobs.complete import said_keys, says_layout

        chosen: tuple[Assumed, ...] = ()
        if self.launch is None and not says_layout(said_keys(self.content, self.overrides)):
            from simcore.planning.question import Question
            from simcore.planning.usual import usual_strategy

            asked = Question(self.content, self.where, self.folder, self.overrides, cluster)
            chosen = usual_strategy(asked)
        job = complete(
            self.content, self.where, overrides=self.overrides, num_gpus=cluster.num_placed,
            generation=cluster.gpu.generation, domain_gpus=cluster.ranks_per_domain, folder=self.folder,
            chosen=chosen,
        )  # fmt: skip
        return job if self.launch is None else self.launch.told(job)


@dataclass(frozen=True)
class Scenario:
    """A complete question.

    ``named`` is what it was asked by: a name, file or folder.  ``graph_dir`` is where the execution graph is
    (None: it follows from ``described``); ``from_catalog`` that it comes with the project, verified;
    ``usual_cluster`` that none was named; ``force`` that hardware may have numbers that none has, and that
    the answer to another question may be written over.
    """

    graph_dir: Path | None
    from_catalog: bool
    cluster: str
    network: str
    seed: int
    settings: RunSettings
    described: DescribedJob | None = None
    force: bool = False
    named: str = ""
    usual_cluster: bool = False

    def with_settings(self, more: Mapping[str, str]) -> Scenario:
        """The same question with ``more`` settings, as ``--set`` takes them.  InputError as there."""
        more = {_section_of_all(key): text for key, text in more.items()}
        of_job = {} if self.described is None else _of_sections(more)
        given = {**self.settings.given, **{key: text for key, text in more.items() if key not in of_job}}
        _check_packets(given, self.network)
        described = self.described
        if described is not None and of_job:
            described = replace(described, overrides={**described.overrides, **of_job})
        return replace(self, settings=parse_settings(given), described=described)


def resolve_scenario(
    workload: str | None,
    *,
    cluster: str | None = None,
    network: str | None = None,
    seed: int | None = None,
    settings: Mapping[str, str],
    force: bool = False,
    content: Any = None,
    launch: tuple[str, str] | None = None,
) -> Scenario:
    """The scenario that arguments describe; what they leave open comes from a scenario file, then defaults.

    ``workload`` is a catalog name, a graph folder, a YAML file with the keys workload (or model, parallel,
    training, software), cluster, network, seed and set, a config.json, a model's name or a recipe's.
    ``content``: of that YAML file, where it is known, or in its place.  ``launch`` stands for a workload: a
    framework and its flags, or a file of them.
    Errors: InputError for anything unknown, with the nearest known name.
    """
    file = ScenarioFile(workload)
    path = Path(workload or "the description")
    if content is None and path.suffix.lower() in (".yaml", ".yml"):
        content = yaml_document(read_text(path, "scenario file"), str(path))
        if content is None:
            raise InputError(f"{path}: is empty; a job is at least `model: llama3-8b`")
    if content is None and workload is not None and "gpu_" in workload:
        content = _recipe(workload)
        if content is not None and cluster is not None:
            content["set"] = {}  # where it is placed on its own cluster
    if content is not None:
        file = file_of(content, path)
    given_network = _first(network, file.network, "fluid")
    _check_network(given_network)
    given_settings = {_section_of_all(key): text for key, text in {**file.settings, **settings}.items()}
    _check_packets(given_settings, given_network)
    given_seed = _first(seed, file.seed, 0)
    if given_seed < 0:
        raise InputError(f"seed {given_seed} must not be negative")
    described: DescribedJob | None
    if launch is not None:
        if workload is not None:
            raise InputError(f"{workload}: flags of a launch describe a job of their own")
        cluster, described = _launched(*launch, cluster, given_settings)
    else:
        described = _described(workload, file, given_settings)
    graph_dir, from_catalog = None, False
    if described is None:
        graph_dir, from_catalog = _graph_dir(_first(file.workload, None, catalog.DEFAULT))
    default = DEFAULT_CLUSTER if described is None else _DESCRIBED_CLUSTER
    of_job: Mapping[str, str] = {}
    if described is not None:
        of_job = described.overrides
        if "workload.kernels" in given_settings:
            raise InputError("workload.kernels maps traced kernels; a described job has software (a preset)")
    return Scenario(
        graph_dir=graph_dir,
        from_catalog=from_catalog,
        cluster=_first(cluster, file.cluster, default),
        network=given_network,
        seed=given_seed,
        settings=parse_settings({key: text for key, text in given_settings.items() if key not in of_job}),
        described=described,
        force=force,
        named=_named(workload, file, launch),
        usual_cluster=cluster is None and file.cluster is None,
    )


def _named(workload: str | None, file: ScenarioFile, launch: tuple[str, str] | None) -> str:
    """What a question is asked by, as an argument of ``run_sim.py``."""
    if launch is not None:
        return f"--from-{launch[0]} {quote(launch[1])}"
    if workload is None and file.described is not None:
        model = file.described.get("model")
        named = model.get("model", model.get("name")) if isinstance(model, Mapping) else model
        return f"{named or 'a described model'}"
    return quote(workload or file.workload or catalog.DEFAULT)


def _launched(
    framework: str, given: str, cluster: str | None, settings: Mapping[str, str]
) -> tuple[str, DescribedJob]:
    """The cluster and the job that flags describe; without a cluster as many GPUs as they start."""
    from workloads.jobs.launch import read_launch

    told = read_launch(framework, given)
    name = cluster or (f"{_FAMILY}-{told.num_gpus}" if told.num_gpus else _DESCRIBED_CLUSTER)
    if cluster is None and (gpus := load_cluster(name).num_gpus) % told.least_gpus:
        # Examples start one node of jobs that need more.
        whole = math.lcm(told.least_gpus, _NODE)
        name = f"{_FAMILY}-{whole * -(-gpus // whole)}"
    overrides = _of_sections(settings)
    hardware = parse_settings({key: text for key, text in settings.items() if key not in overrides}).hardware
    launch = told.on(load_cluster(name, hardware).num_gpus)
    return name, DescribedJob(launch.content, told.where, None, overrides, launch)


def _check_packets(settings: Mapping[str, str], network: str) -> None:
    for key in settings:
        if key.startswith("network.") and network != "packet":
            raise InputError(f"{key} says something about packets: it needs --network packet")


def _section_of_all(key: str) -> str:
    """``strategy.dense``, which is a part of the section ``parallel``, written out."""
    return f"parallel.{key}" if key.partition(".")[0] == "strategy" else key


def _of_sections(settings: Mapping[str, str]) -> dict[str, str]:
    """Settings of a description.  InputError for others that look like one."""
    overrides = {key: text for key, text in settings.items() if key.partition(".")[0] in SECTIONS}
    for key in settings.keys() - overrides.keys():
        section, _, name = key.partition(".")
        close = difflib.get_close_matches(section, SECTIONS, n=1, cutoff=0.8) if name else []
        other = f"{close[0]}.{name}" if close else None if key in KEYS else _meant(name or key)
        if other:
            raise InputError(f"unknown setting {key!r}; did you mean {other!r}?")
    return overrides


def _described(workload: str | None, file: ScenarioFile, settings: Mapping[str, str]) -> DescribedJob | None:
    """The description, if the workload is one; settings of its sections go with it."""
    overrides = _of_sections(settings)
    if file.described is not None:
        path = Path(workload or "the description")
        return DescribedJob(file.described, str(path), path.parent, overrides)
    named = file.workload
    if named is not None and not there(Path(named), folder=True):
        if named.endswith(".json") or ("." not in named and there(Path(named))):
            return DescribedJob({"model": named}, named, None, overrides)
        if named not in catalog.names() and _is_model(named):
            return DescribedJob({"model": named}, named, None, overrides)
    return None


def _meant(name: str) -> str | None:
    """The key of a description that is so called, here or by others."""
    from workloads.jobs import meant

    return meant(name)


def _recipe(name: str) -> dict[str, Any] | None:
    from workloads.jobs.presets import recipes

    found = recipes().get(name.removesuffix("_config"))
    return None if found is None else found.scenario()


def _is_model(name: str) -> bool:
    from workloads.jobs import is_named

    return is_named(name)


def _first(argument: T | None, in_file: T | None, default: T) -> T:
    """What was given, by precedence."""
    if argument is not None:
        return argument
    return default if in_file is None else in_file


def _check_network(network: str) -> None:
    if network not in NETWORKS:
        raise InputError(f"unknown network {network!r}{nearest(network, NETWORKS)}")


def _graph_dir(workload: str) -> tuple[Path, bool]:
    """Where the graph of a folder or catalog name is, and whether it is the catalog's."""
    if not workload.strip():
        raise InputError(f"unknown workload {workload!r}{nearest(workload, catalog.names())}")
    folder = Path(workload)
    if there(folder, folder=True):
        if not (folder / "graph.json").is_file():
            raise InputError(f"{folder} is not a graph folder: it has no graph.json")
        return folder, False
    if folder.suffix == ".json" or there(folder):
        raise InputError(
            f"{workload}: a workload is a catalog name, a graph folder, a YAML file, a Hugging Face"
            " config.json or a model's name"
        )
    if workload not in catalog.names():
        from workloads.jobs import model_names
        from workloads.jobs.presets import recipes

        if "/" in workload:
            close = nearest(folder.name.lower(), model_names())
            close = close if close.startswith("; did") else ""
            raise InputError(
                f"{workload}: no such graph folder; of a model of the Hugging Face Hub give its"
                f" config.json{close}"
            )
        close = nearest(workload, (*catalog.names(), *model_names(), *recipes()))
        if not close.startswith("; did"):
            close = "; `python -m simcore list workloads` and `list models` name all"
        raise InputError(f"unknown workload {workload!r}{close}")
    return catalog.path(workload), True
