"""Will it fit?  The verdict on a workload, what would fit instead, and ``--memory-only``."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final

from simcore.errors import InputError
from simcore.hardware import ClusterSpec
from simcore.memory import (
    MemoryVerdict,
    OutsideHolders,
    OutsideMemory,
    ProgramMemory,
    StageNeed,
    verdict,
)
from simcore.records import dataclass
from simcore.report.asked import asked_lines
from simcore.units import GIB, room_unit

if TYPE_CHECKING:
    from pathlib import Path

    from simcore.apps.run.loading import Loaded
    from simcore.apps.run.scenario import Scenario
    from simcore.graph import Graph, Workload
    from simcore.memory.played import PlayedStage
    from simcore.memory.recorded import HeldSizes
    from workloads.jobs import Assumed, Description
    from workloads.parallel.job import Described

#: Stages whose closed form is further below the fullest one's than played stages are off it cannot be it.
_NEAR: Final = 0.9
#: Nor can those whose storages, counted one by one, take so much less: in 28 published and traced jobs, of
#: which all 4 to 35 stages were played, the one whose storages take most reserves most, and none with less
#: than this share of them more than 0.98 of that.
_FULL: Final = 0.95
_SHOWN: Final = 20
_RANK: Final = re.compile("[-,]")  # what ends the first rank of "0-7, 16"
_LAYER: Final = re.compile(r"(?<![^.])[0-9]+(?![^.])")  # of a module's name
_MOST_STORAGES: Final = 1 << 20
_MOST_BYTES: Final = 1 << 48
_WIDTH: Final = 80


def played(job: Described, near: float = _NEAR, full: float = _FULL) -> list[PlayedStage]:
    """The stages among which the fullest one is, played (``near`` and ``full`` 0: all)."""
    from workloads.parallel.job import Job
    from workloads.parallel.played import played_stages

    return played_stages(Job.of(job), near=near, full=full)


def played_graph(
    graph: Graph, cluster: ClusterSpec, scenario: Scenario, near: float = _FULL
) -> list[PlayedStage]:
    """Programs of ``graph`` among which the fullest one is, played; none where it tells no allocations.

    What they hold is known storage by storage before they are played.
    """
    from simcore.memory.caching import AllocatorSettings
    from simcore.memory.lifetimes import product_workspace
    from simcore.memory.recorded import played_programs

    settings = scenario.settings.allocator or AllocatorSettings()
    held = _held_sizes(scenario.graph_dir) if scenario.graph_dir is not None else {}
    return played_programs(graph, held, settings, product_workspace(cluster.gpu.generation), near)


def _held_sizes(folder: Path) -> dict[int, HeldSizes]:
    """What ranks hold through their steps, storage by storage, as ``trace.json`` of a graph's folder has it:
    ``held``, by ranks and category runs of BYTESxCOUNT.  InputError where it has something else.
    """
    from simcore.memory.recorded import HeldSizes
    from simcore.outside import json_document, read_text

    path = folder / "trace.json"
    if not path.is_file():
        return {}
    try:
        return {
            int(_RANK.split(ranks)[0]): HeldSizes(
                tuple((category, _sizes(runs)) for category, runs in by_category.items())
            )
            for ranks, by_category in json_document(read_text(path, "a trace"), str(path))
            .get("held", {})
            .items()
        }
    except (AttributeError, TypeError, ValueError):
        raise InputError(f"{path}: held must be storages as BYTESxCOUNT, by ranks and category") from None


def _sizes(runs: str) -> tuple[int, ...]:
    found: list[int] = []
    for run in runs.split():
        size, _, count = run.partition("x")
        if not 0 <= int(size) < _MOST_BYTES or not 0 < int(count) <= _MOST_STORAGES - len(found):
            raise ValueError(run)
        found += [int(size)] * int(count)
    return tuple(found)


def outside_of(
    cluster: ClusterSpec, job: Described | None = None, graph: Graph | None = None,
    nccl: Mapping[str, Any] | None = None,
) -> OutsideMemory:  # fmt: skip
    """What of a GPU is not the allocator's: of a described ``job``, or of the programs of a ``graph``."""
    from simcore.graph.communicators import communicators_of
    from simcore.run import outside_on
    from workloads.parallel.communicators import outside_holders
    from workloads.parallel.job import Job

    if job is not None:
        return outside_on(cluster, nccl or {}, outside_holders(Job.of(job)))
    assert graph is not None
    ends = {program.name: program for program in (graph.programs[0], graph.programs[-1])}.values()
    groups = tuple(tuple(communicators_of(graph, one)) for one in ends)
    return outside_on(cluster, nccl or {}, OutsideHolders(groups))


def verdict_of(
    available_bytes: int, stages: Sequence[PlayedStage] = (), memory: Sequence[ProgramMemory] = ()
) -> MemoryVerdict:
    """Of a described job's ``stages``, played, or of what a graph's programs hold (``memory``)."""
    from workloads.evidence.memory_misses import memory_misses

    needs = [StageNeed(one.stage, one.needs_bytes(available_bytes), one.instant) for one in stages]
    needs = needs or [StageNeed(one.stage, one.total, _recorded_instant(one)) for one in memory]
    return verdict(needs, available_bytes, memory_misses())


def _recorded_instant(one: ProgramMemory) -> str:
    microbatch = f"microbatch {one.peak_microbatch}'s " if one.peak_microbatch >= 0 else ""
    return f"{microbatch}{one.peak_template}" if one.peak_template else ""


def remedies(found: Loaded, scenario: Scenario, available_bytes: int, *, timed: bool = True) -> list[str]:
    """What would fit; if ``timed`` with what it costs in time, simulated, the cheapest first.

    What is timed fits as a run of it is told, too: by its stages, played.
    """
    from simcore.apps.run.simulation import setup_of
    from simcore.run import run
    from workloads.jobs.advice import variants_that_fit, what_fits
    from workloads.parallel.job import Job
    from workloads.parallel.members import fullest_tables

    assert found.description is not None
    tables = fullest_tables(Job.of(found.description))
    fitting = variants_that_fit(found.description, available_bytes) if timed else []
    fitting = [one for one in fitting if verdict_of(available_bytes, played(one.job)).word != "does not fit"]
    if not fitting:
        return [*tables, *what_fits(found.description, available_bytes)]
    setup = dataclasses.replace(setup_of(scenario), noise_sigma=0.0, rank_gpus={})
    before = run(found.graph, found.cluster, setup).step_s
    costs = [(run(one.job.graph(), found.cluster, setup).step_s / before - 1, one) for one in fitting]
    return tables + [
        f"would fit: {one.settings} ({slower:+.1%} time, {one.peak_bytes / GIB:.1f} GiB)"
        for slower, one in sorted(costs, key=lambda pair: pair[0])
    ]


def memory_answer(
    scenario: Scenario, *, snapshot: Path | None = None, picture: Path | None = None
) -> tuple[list[str], dict[str, Any]]:
    """Lines and the JSON object of ``--memory-only``; files for PyTorch's viewer, and to look at.

    Errors as for loading the scenario; InputError for files of a workload that is no description.
    """
    from simcore.apps.run.loading import loaded, loaded_cluster
    from simcore.memory import peak_memory

    memory: Sequence[ProgramMemory] = ()
    job, graph = None, None
    if scenario.described is not None:
        if scenario.settings.allocator is not None:
            raise InputError("memory.allocator is of traced programs; a described job has software.allocator")
        cluster, job = loaded_cluster(scenario)
        assert job is not None
        stages = played(job, _NEAR if picture is None else 0.0, full=0.0)
        outside = outside_of(cluster, job, nccl=scenario.settings.nccl)
    else:
        found = loaded(scenario)
        cluster, graph = found.cluster, found.built(scenario.settings)
        stages = played_graph(graph, cluster, scenario, _NEAR if picture is None else 0.0)
        outside = outside_of(cluster, graph=graph, nccl=scenario.settings.nccl)
        memory = peak_memory(graph)
    said = verdict_of(outside.available_bytes(cluster.gpu), stages, memory)
    if stages:
        lines = [str(said), *_stage_lines(stages, said, cluster, outside)]
        shown = {**said.as_object(), "stages": [_stage_object(one) for one in stages]}
    elif snapshot or picture:
        raise InputError("--memory-snapshot and --memory-picture need a job that tells what it allocates")
    else:
        lines = [str(said), "allocated bytes as the program was recorded, without the allocator's segments"]
        recorded = [{"stage": one.stage, "allocated_bytes": one.total} for one in memory]
        shown = {**said.as_object(), "stages": recorded}
    if snapshot is not None:
        from simcore.apps.run.memory_snapshot import write_snapshot

        write_snapshot(next(one for one in stages if one.stage == said.need.stage), snapshot)
        lines.append(f"{snapshot}: stage {said.need.stage} for docs.pytorch.org/memory_viz")
    if picture is not None:
        from simcore.apps.run.memory_picture import write_picture

        write_picture(stages, said.available_bytes, picture)
        lines.append(f"{picture}: what stages hold over the step")
    helps: list[str] = []
    if said.word != "fits" and scenario.described is not None:
        helps = remedies(loaded(scenario), scenario, said.available_bytes)
    asked = _question(scenario, cluster, job, graph)
    shown |= {"outside_bytes": outside.as_object(), "would_fit": helps}
    shown["assumed"] = [dataclasses.asdict(one) for one in asked.assumed]
    source = f"the margin is half of what the middle 80% of measured over predicted span: {said.source}"
    would = [part for line in helps for part in wrap(line, _WIDTH, subsequent_indent="  ")]
    return [*wrap(lines[0], _WIDTH), *would, *asked_lines(asked), *lines[1:], *wrap(source, _WIDTH)], shown


@dataclass(frozen=True)
class _Question:
    """What is asked, for :func:`simcore.report.asked.asked_lines`."""

    workload: Workload
    cluster: Mapping[str, Any]
    network: str
    software: Mapping[str, Any]
    settings: Mapping[str, str]
    assumed: Sequence[Assumed]
    asked: str = ""


def _question(
    scenario: Scenario, cluster: ClusterSpec, job: Description | None, graph: Graph | None
) -> _Question:
    from simcore.apps.run.loading import assumed_of
    from simcore.graph import Workload

    if job is not None:
        from workloads.parallel.generate import workload_of
        from workloads.parallel.job import Job

        workload = Workload(world_size=job.parallel.world_size, **workload_of(Job.of(job)))
    else:
        assert graph is not None, "a workload is a description or a graph"
        workload = graph.workload
    return _Question(
        workload,
        {"name": cluster.name, "gpu": {"name": cluster.gpu.name}},
        scenario.network,
        {} if job is None else {"name": job.software.name, "fp8_recipe": job.software.fp8_recipe},
        scenario.settings.given,
        assumed_of(scenario, job, graph),
    )


def _stage_lines(
    stages: Sequence[PlayedStage], said: MemoryVerdict, cluster: ClusterSpec, outside: OutsideMemory
) -> list[str]:
    lines = [f"{'stage':>7}{'allocated':>12}{'reserved':>12}{'closed form':>13}  peak at"]
    # Neighbours that are alike have equal rows, and as many stages between them as places.
    rows = [(_stage_row(one), one.stage - place, one.stage) for place, one in enumerate(stages)]
    for (row, _), group in groupby(rows, lambda one: one[:2]):
        alike = [stage for _, _, stage in group]
        name = f"{alike[0]}-{alike[-1]}" if len(alike) > 1 else f"{alike[0]}"
        lines.append(f"{name:>7}{row}"[:_WIDTH])
    left = f"{cluster.gpu.hbm_bytes / GIB:.2f} less {outside}"
    lines += wrap(f"of {said.available_bytes / GIB:.2f} GiB: {left}", _WIDTH, subsequent_indent="  ")
    lines.append("stages with 10% less than the fullest are left out")
    worst = next(one for one in stages if one.stage == said.need.stage)
    lines.append(f"the {_SHOWN} largest of stage {worst.stage} then, by who holds them:")
    for (num_bytes, category, name, microbatch), layers in _alike(worst):
        times = f"{len(layers)} x" if len(layers) > 1 else ""
        name = name.replace("*", f"{layers[0]}", 1) if len(set(layers)) == 1 else name
        of = f" of microbatch {microbatch}" if microbatch >= 0 else ""
        lines.append(f"{times:>6}{num_bytes / (1 << 20):9.1f} MiB  {category}{of}: {name}"[:_WIDTH])
    return lines


def _stage_row(one: PlayedStage) -> str:
    allocated, reserved = _in_room(one.memory.peak_allocated), _in_room(one.memory.peak_reserved)
    form = _in_room(one.closed_form_bytes) if one.closed_form_bytes >= 0 else "recorded"
    return f" {allocated:>11} {reserved:>11} {form:>12}  {one.instant}"


def _in_room(num_bytes: int) -> str:
    scale, unit = room_unit(num_bytes)
    return f"{num_bytes / scale:.2f} {unit}"


def _alike(stage: PlayedStage) -> list[tuple[tuple[int, str, str, int], list[int]]]:
    """The largest storages live at the peak, those that differ in their layer alone together."""
    found: dict[tuple[int, str, str, int], list[int]] = {}
    for held in stage.at_peak:
        holder = held.holder
        module = _LAYER.sub("*", holder.module, count=1) if holder.layer >= 0 else holder.module
        name = f"{module} {holder.name}".strip()
        key = held.num_bytes, holder.category, name, held.microbatch
        found.setdefault(key, []).extend([holder.layer] * held.count)
    return list(found.items())[:_SHOWN]


def _stage_object(one: PlayedStage) -> dict[str, Any]:
    return {
        "stage": one.stage, "allocated_bytes": one.memory.peak_allocated,
        "reserved_bytes": one.memory.peak_reserved,
        "closed_form_bytes": one.closed_form_bytes if one.closed_form_bytes >= 0 else None,
        "instant": one.instant, "by_category": one.by_category,
        "largest": [
            {
                "num_bytes": held.num_bytes, "count": held.count, "category": held.holder.category,
                "name": held.holder.name, "module": held.holder.module, "layer": held.holder.layer,
                "microbatch": held.microbatch,
            }
            for held in one.at_peak[:_SHOWN]
        ],
    }  # fmt: skip
