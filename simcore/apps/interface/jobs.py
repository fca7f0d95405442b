"""Jobs on clusters, as Python asks about them: described, traced, or from the catalog and files."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from simcore.apps.interface.shown import ShownAsTables
from simcore.apps.run.scenario import Scenario, resolve_scenario
from simcore.apps.run.scenario_file import SECTIONS
from simcore.errors import InputError, nearest
from simcore.records import dataclass

if TYPE_CHECKING:
    from simcore.hardware import ClusterSpec
    from simcore.memory import MemoryVerdict
    from workloads.jobs import Description


@dataclass(frozen=True, repr=False)
class JobOnCluster(ShownAsTables):
    """A question: a job, its cluster, how it is simulated.

    Made by :func:`describe`, :func:`load` and :func:`trace`; ``scenario`` is what ``run_sim.py`` is asked,
    ``of_trace`` what limits trust in a trace.  Frozen: :meth:`changed` makes another one.
    """

    scenario: Scenario
    of_trace: tuple[str, ...] = ()
    kept: Any = None  # the folder of a traced graph, which goes with the last job that needs it

    @cached_property
    def _loaded(self) -> tuple[ClusterSpec, Description | None]:
        from simcore.apps.run.loading import loaded_cluster

        return loaded_cluster(self.scenario)

    @property
    def cluster(self) -> ClusterSpec:
        """What it runs on."""
        return self._loaded[0]

    @property
    def complete(self) -> Description:
        """The complete job: ``model``, ``parallel``, ``training``, ``software``, and what was ``assumed``.

        InputError for a graph, which is one without being described.
        """
        job = self._loaded[1]
        if job is None:
            raise InputError(
                f"{self.scenario.graph_dir} is a graph: no model, degrees or software are known of it"
            )
        return job

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What was taken for granted to complete it, a line each; nothing for a graph."""
        return self._loaded[1].assumptions if self._loaded[1] is not None else ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What limits trust in a trace, what contradicts itself or was not understood, a line each."""
        return (*self.of_trace, *(self._loaded[1].warnings if self._loaded[1] is not None else ()))

    @cached_property
    def memory(self) -> MemoryVerdict:
        """Whether it fits, as ``--memory-only`` says it: ``word``, ``room_bytes``, ``chance``."""
        from simcore.apps.run.loading import loaded

        found = loaded(self.scenario)
        relaxed = replace(self.scenario, settings=replace(self.scenario.settings, refuse_memory=False))
        return found.fits(found.built(relaxed.settings), found.cluster, relaxed)[1]

    def changed(
        self,
        *,
        cluster: str | Path | None = None,
        settings: Mapping[str, Any] | None = None,
        **sections: Mapping[str, Any] | str,
    ) -> JobOnCluster:
        """The same job with other values; arguments as those of :func:`describe`.

        InputError as there.
        """
        again = _settings(settings or {})
        scenario = self.scenario
        if cluster is not None:
            scenario = replace(scenario, cluster=str(cluster))
        if again:
            scenario = scenario.with_settings(again)
        return _checked(replace(self, scenario=_with_sections(scenario, sections)))

    def to_yaml(self, path: Path | str | None = None) -> str:
        """The complete job as ``run_sim.py`` takes it; written to ``path``, too.  InputError for a graph."""
        import yaml

        from simcore.apps.plan.files import job_content
        from simcore.files import whole_text

        content = job_content(self.complete, self.scenario.cluster, self.scenario.settings.given)
        text: str = yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=100)
        if path is not None:
            whole_text(Path(path), text)
        return text

    def __rich__(self) -> RenderableType:
        cluster = f"on {self.cluster.num_placed} GPUs ({self.cluster.gpu.name}) of {self.cluster.name}"
        warnings = "".join(f"\nwarning: {one}" for one in self.warnings)
        if self._loaded[1] is None:
            return Text(f"graph {self.scenario.graph_dir} {cluster}{warnings}")
        table = Table(box=None, padding=(0, 2, 0, 0))
        for column in ("assumed", "value", "because"):
            table.add_column(column)
        for one in self.complete.assumed:
            table.add_row(one.key, "" if one.value is None else str(one.value), one.why)
        job = self.complete
        return Group(Text(f"{job.model.name} {cluster}{warnings}"), table)


def describe(
    model: str | Mapping[str, Any] | Path,
    *,
    cluster: str | Path | None = None,
    parallel: Mapping[str, Any] | None = None,
    training: Mapping[str, Any] | None = None,
    software: str | Mapping[str, Any] | None = None,
    network: str | None = None,
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
    force: bool = False,
) -> JobOnCluster:
    """A described job, complete: what is left open follows from the same rules as for ``run_sim.py``.

    ``model`` is a name, a Hugging Face config.json, a scenario's YAML file, or a mapping of a model's fields;
    ``parallel``, ``training`` and ``software`` say or change keys of these sections (``docs/parallelism.md``,
    ``docs/presets.md``); ``software`` may be a preset's name.  ``settings``: what ``--set`` takes beside,
    such as ``{"gpu.conditions": "cool"}``.  ``cluster``: a profile's name or file (default: ``h100-256``).

    Errors: InputError for anything unknown or impossible, with the nearest known name.
    """
    if not isinstance(model, str | Path | Mapping):
        raise InputError(f"model: a name, a file or a mapping of a model's fields, not {model!r:.80}")
    named = model if isinstance(model, str | Path) else None
    sections = {"parallel": parallel, "training": training, "software": software}
    content = None if named is not None else {"model": dict(model)}  # type: ignore[arg-type]
    scenario = resolve_scenario(
        None if named is None else str(named),
        cluster=_named(cluster), network=network, seed=seed, settings=_settings(settings or {}), force=force,
        content=content,
    )  # fmt: skip
    given = {name: value for name, value in sections.items() if value is not None}
    return _checked(JobOnCluster(_with_sections(scenario, given)))


def load(
    workload: str | Path | None = None,
    *,
    cluster: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    network: str | None = None,
    seed: int | None = None,
    force: bool = False,
    megatron: str | Path | None = None,
    torchtitan: str | Path | None = None,
) -> JobOnCluster:
    """What ``run_sim.py`` takes as WORKLOAD: a catalog name, graph folder or YAML file.

    ``megatron``, ``torchtitan``: in its place flags of a launch, or a script, log or file that tells them
    (docs/launch.md).  InputError for anything unknown, with the nearest known name.
    """
    from simcore.apps.run.launching import launch_asked

    launch = launch_asked(
        **{name: str(given) for name, given in (("megatron", megatron), ("torchtitan", torchtitan)) if given}
    )
    scenario = resolve_scenario(
        None if workload is None else str(workload),
        cluster=_named(cluster), network=network, seed=seed, settings=_settings(settings or {}), force=force,
        launch=launch,
    )  # fmt: skip
    return _checked(JobOnCluster(scenario))


def trace(
    script: str | Path,
    args: Sequence[str] = (),
    *,
    world_size: int,
    out: Path | str | None = None,
    cluster: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    gpus_per_node: int = 8,
    steps: str = "2:3",
    setup: Path | str | None = None,
    progress: Callable[..., None] | None = None,
) -> JobOnCluster:
    """The job that an unmodified training script is, run without a GPU, a process for each distinct rank.

    ``args`` are the script's own; ``steps``: the optimizer step to keep, "A:B" counted from 0; ``setup``: a
    Python file that is run first.  The graph is written to ``out`` (default: a temporary folder that goes
    with the job).  ``cluster`` and ``settings`` as for :func:`describe`.

    Errors: InputError for an argument that is wrong, FakeDeviceError where torch cannot be used, ScriptError
    where the script cannot be traced (it names the line), GraphError where its ranks do not fit together.
    """
    from simcore.graph import save_graph
    from workloads.tracing.drive.script_job import ScriptJob, parse_steps
    from workloads.tracing.drive.trace import trace as traced

    job = ScriptJob(
        script=Path(script), arguments=tuple(map(str, args)), world_size=world_size,
        gpus_per_node=gpus_per_node, step=parse_steps(steps), setup=None if setup is None else Path(setup),
    )  # fmt: skip
    graph, report = traced(job, progress=progress)
    kept = tempfile.TemporaryDirectory(prefix="simcore-graph-") if out is None else None
    folder = Path(kept.name) / "graph" if kept is not None else Path(str(out))
    save_graph(graph, folder, report.write)
    found = load(folder, cluster=cluster, settings=settings)
    return replace(found, of_trace=tuple(report.warnings), kept=kept)


def _checked(job: JobOnCluster) -> JobOnCluster:
    """``job``, completed: what cannot be is known where it is said."""
    _ = job.cluster
    return job


def _with_sections(scenario: Scenario, sections: Mapping[str, Any]) -> Scenario:
    """``scenario`` with keys of its job's sections said or changed."""
    for name in sections:
        if name not in SECTIONS:
            raise InputError(f"unknown section {name!r}{nearest(name, SECTIONS)}")
        if not isinstance(sections[name], str | Mapping):
            raise InputError(f"{name}: a mapping of keys to values, not {sections[name]!r:.80}")
    if not sections:
        return scenario
    job = scenario.described
    if job is None:
        raise InputError(
            f"{', '.join(sections)}: a graph's degrees and software are as traced; what can be edited:"
            " simulate(job, edits=[...])"
        )
    content, overrides = dict(job.content), dict(job.overrides)
    for name, said in sections.items():
        before = content.get(name)
        again = overrides if isinstance(said, str) else [f"{name}.{key}" for key in said]
        for key in [key for key in again if key in overrides and key.startswith(f"{name}.")]:
            del overrides[key]  # what is said last counts
        if isinstance(said, str) or before is None:
            content[name] = said if isinstance(said, str) else dict(said)
        else:
            content[name] = {**({name: before} if isinstance(before, str) else before), **said}
    return replace(scenario, described=replace(job, content=content, overrides=overrides))


def _named(cluster: str | Path | None) -> str | None:
    """A cluster's profile as ``--cluster`` takes it."""
    return None if cluster is None else str(cluster)


def _settings(settings: Mapping[str, Any]) -> dict[str, str]:
    """Values as ``--set`` takes them."""
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in settings.items()
    }
