"""Trace a script: run the ranks that differ, group them by what they recorded, assemble the graph."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from simcore.graph import Graph, ProcessGroup, Workload, verify
from simcore.graph.kinds import P2P
from simcore.graph.passes import fuse_regions
from workloads.tracing import fake_device, group_families
from workloads.tracing.assemble import assemble
from workloads.tracing.pool import Progress, WorkerPool, workers
from workloads.tracing.rank_classes import RankClass, contiguous_text, group_ranks
from workloads.tracing.recording import GROUP, KIND
from workloads.tracing.script import rank_script
from workloads.tracing.script.candidates import RankSearch, Stages, axes
from workloads.tracing.script.framework_imports import leading_imports
from workloads.tracing.script.job import ScriptJob
from workloads.tracing.script.rank_script import ScriptTrace
from workloads.tracing.script.rounds import Rounds
from workloads.tracing.templates import CutProgram

#: Ranks that are run at most, unless the user says otherwise.
MAX_RANKS_RUN = 16


@dataclass
class ScriptReport:
    """What happened while tracing, beside the graph."""

    ranks_run: list[int] = field(default_factory=list)
    values: list[dict[str, Any]] = field(default_factory=list)
    holders: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    peak_bytes_by_phase: dict[str, dict[str, int]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def write(self, folder: Path) -> None:
        """``trace.json`` in the graph's folder."""
        (folder / "trace.json").write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")


def trace_script(
    job: ScriptJob,
    *,
    name: str = "",
    tokens_per_step: int = 0,
    num_workers: int | None = None,
    max_ranks: int = MAX_RANKS_RUN,
    progress: Progress | None = None,
) -> tuple[Graph, ScriptReport]:
    """The execution graph of one step of ``job``, verified.

    ``tokens_per_step``: what the script trains on in a step over all ranks, for reports (0: unknown).
    ScriptError when the script cannot be traced, GraphError when its ranks do not fit together.
    """
    report = ScriptReport()
    untested = fake_device.untested_warning(fake_device.find_torch())
    if untested:
        report.warnings.append(untested)
    imports = leading_imports(job.script) if job.setup is None else ()  # a setup may replace modules
    with workers(rank_script.prepare, num_workers, arguments=(imports,)) as pool:
        graph = trace_script_in(
            pool,
            job,
            report,
            name=name,
            tokens_per_step=tokens_per_step,
            max_ranks=max_ranks,
            progress=progress,
        )
    return graph, report


def trace_script_in(
    pool: WorkerPool,
    job: ScriptJob,
    report: ScriptReport,
    *,
    name: str = "",
    tokens_per_step: int = 0,
    max_ranks: int = MAX_RANKS_RUN,
    progress: Progress | None = None,
) -> Graph:
    """As :func:`trace_script`, in workers that are running already; fills ``report``."""
    with tempfile.TemporaryDirectory(prefix="simcore-mail-") as mail:
        rounds = Rounds(pool, job, Path(mail), progress)
        search = RankSearch(lambda ranks: _hashes(rounds, ranks), max_ranks)
        search.ends(job.world_size)
        seen = rounds.seen
        families = _families(seen[0], job.world_size)
        places = axes(families, job.world_size)
        stages = Stages(places, _pipelined(seen[0]), job.world_size)
        hashes = search.classes(stages.kinds, stages.ranks, num_axes=len(places))
    report.ranks_run = sorted(seen)
    if search.assumed:
        report.warnings.append(
            f"ranks differ from each other; {len(seen)} were run (--max-ranks), and {search.assumed} of "
            f"{job.world_size} are taken to do what the nearest of those below them does"
        )
    classes = group_ranks(hashes, {rank: rank for rank in hashes}, stages.numbers)
    ordered = [seen[_representative(one, hashes, search.hashes)] for one in classes]
    used = {str(symbol) for one in seen.values() for symbol in _columns(one.trace.program, GROUP) if symbol}
    groups = group_families.used_families(ordered[0].trace.families, used, job.world_size)
    for one in seen.values():
        group_families.check_all(groups, one.trace.rank, one.trace.groups)
    graph = assemble(
        _workload(job, name or job.script.stem, ordered[0], families, tokens_per_step),
        classes,
        [one.trace for one in ordered],
        [one.trace.program for one in ordered],
        groups,
    )
    if any("/fused:" in module for module in graph.ops.module.values):
        graph = fuse_regions(graph)
    report.warnings += verify(graph)
    _describe(report, classes, ordered, seen)
    return graph


def _hashes(rounds: Rounds, ranks: Sequence[int]) -> dict[int, str]:
    return {rank: _fingerprint(rounds.seen[rank]) for rank in rounds.run(ranks)}


def _fingerprint(one: ScriptTrace) -> str:
    return f"{one.trace.program.digest()} {one.trace.memory}"


def _columns(program: CutProgram, column: int) -> list[Any]:
    return [row[column] for template in program.templates.values() for row in template.rows]


def _pipelined(one: ScriptTrace) -> set[str]:
    """Symbols of the groups with point-to-point traffic."""
    program = one.trace.program
    kinds, groups = _columns(program, KIND), _columns(program, GROUP)
    return {str(group) for kind, group in zip(kinds, groups, strict=True) if kind in P2P}


def _families(one: ScriptTrace, world_size: int) -> dict[str, ProcessGroup]:
    """Every family that the program made, used or not."""
    symbols = dict.fromkeys(("world", *(symbol for symbol, _ in one.trace.families)))
    return group_families.used_families(one.trace.families, symbols, world_size)


def _representative(one: RankClass, hashes: Mapping[int, str], run: Mapping[int, str]) -> int:
    """The lowest rank of the class that was run, else of any rank that recorded the same."""
    digest = hashes[one.representative]
    return next((rank for rank in one.ranks if rank in run), None) or min(
        rank for rank, found in run.items() if found == digest
    )


def _workload(
    job: ScriptJob,
    name: str,
    one: ScriptTrace,
    families: Mapping[str, ProcessGroup],
    tokens_per_step: int,
) -> Workload:
    sizes = {family.name: family.size for family in axes(families, job.world_size)}
    if "world" in sizes or math.prod(sizes.values()) != job.world_size:
        sizes = {"dp": job.world_size}
    return Workload(
        name=name,
        world_size=job.world_size,
        dims=sizes,
        num_microbatches=one.trace.num_microbatches,
        tokens_per_step=tokens_per_step,
        precision=one.precision,
        framework="pytorch",
        versions=dict(one.trace.versions),
        command=job.command(),
        model={"family": "script", "parameters_per_rank": one.num_parameters},
        options={"step": job.step, "values": dict(job.values)},
    )


def _describe(
    report: ScriptReport,
    classes: Sequence[RankClass],
    ordered: Sequence[ScriptTrace],
    seen: Mapping[int, ScriptTrace],
) -> None:
    for one, trace in zip(classes, ordered, strict=True):
        ranks = contiguous_text(one.ranks)
        report.holders[ranks] = [asdict(holder) for holder in trace.holders]
        report.peak_bytes_by_phase[ranks] = dict(trace.peaks)
        report.values += [{"ranks": ranks, **asdict(asked), "times": times} for asked, times in trace.asked]
    unused = set.intersection(*(set(one.unused) for one in seen.values()))
    report.warnings += [f"--value {site}: no value was asked for there" for site in sorted(unused)]
