"""Small jobs and programs that the tracing tests share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from simcore.graph import Graph, Program
from workloads.tracing import MegatronGptJob
from workloads.tracing.drive.fork_server import WorkerPool
from workloads.tracing.drive.rank_run import run_rank
from workloads.tracing.record.assemble import RankTrace
from workloads.tracing.record.recording import COLUMNS
from workloads.tracing.record.templates import CUT_COLUMNS, CutProgram, CutTemplate, Instance

#: Modules without which nothing can be traced.
NEEDS = ("torch", "megatron", "einops")

SMALL = MegatronGptJob(
    layers=4, hidden=128, heads=4, seq=64, vocab=256, tp=2, pp=2, dp=1, microbatches=9, recompute="full"
)


def gpt_traces(pool: WorkerPool, case: MegatronGptJob, calls: Iterable[tuple[int, int]]) -> list[RankTrace]:
    """What ranks do with so many microbatches, behind a warm-up."""
    runs = [pool.submit(run_rank, case.script(microbatches), rank) for rank, microbatches in calls]
    return [run.result() for run in runs]


def job(**changes: Any) -> MegatronGptJob:
    """:data:`SMALL` with changes."""
    return replace(SMALL, **changes)


def column(template: CutTemplate, name: str) -> list[Any]:
    """One column of a template."""
    index = (*COLUMNS, *CUT_COLUMNS).index(name)
    return [row[index] for row in template.rows]


def rows(found: Any, *columns: str) -> list[tuple[Any, ...]]:
    """Columns of all ops of a step, in order."""
    templates = [found.program.templates[entry.template] for entry in found.program.skeleton]
    return [row for one in templates for row in zip(*(column(one, name) for name in columns), strict=True)]


def played(program: CutProgram, kind: str, microbatch: int | None = None) -> CutTemplate:
    """The template of the first (or the given microbatch's) instance of ``kind``."""
    return next(
        program.templates[entry.template]
        for entry in program.skeleton
        if program.templates[entry.template].name == kind and microbatch in (None, entry.microbatch)
    )


def communication(template: CutTemplate) -> Counter[tuple[str, str, str, int]]:
    """(phase, collective, stream, bytes) of a template's collectives, counted."""
    names = ("phase", "collective", "stream", "num_bytes")
    rows = zip(*(column(template, name) for name in names), strict=True)
    return Counter(row for row in rows if row[1])


def read_back(graph: Graph, program: Program) -> CutProgram:
    """What ``assemble`` was given for one program: comparable with a fresh trace by its digest."""
    columns = [getattr(graph.ops, name).tolist() for name in (*COLUMNS, *CUT_COLUMNS)]
    edges, frees = graph.edges, graph.frees
    streams = edges.ext_stream.tolist()
    templates: dict[int, CutTemplate] = {}
    for number in sorted(set(program.template.tolist())):
        rows = graph.template_rows(number)
        start = rows.start
        first, last = np.searchsorted(edges.dst, (start, rows.stop)).tolist()
        found = []
        for edge in range(first, last):
            src, back = int(edges.src[edge]), int(edges.ext_back[edge])
            found.append(
                (
                    int(edges.dst[edge]) - start,
                    src - start if src >= 0 else -1,
                    int(edges.kind[edge]),
                    streams[edge],
                    back,
                )
            )
        released = []
        for free in np.flatnonzero(frees.template == number).tolist():
            after, owner, scope = int(frees.after[free]), int(frees.owner[free]), int(frees.owner_scope[free])
            released.append(
                (
                    after - start if after >= 0 else -1,
                    int(frees.num_bytes[free]),
                    owner - start if scope == 0 else owner,
                    scope,
                )
            )
        templates[number] = CutTemplate(
            graph.template_names[number],
            tuple(zip(*(column[start : rows.stop] for column in columns), strict=True)),
            tuple(sorted(found)),
            tuple(sorted(released)),
        )
    digests = {number: template.digest() for number, template in templates.items()}
    played = zip(program.template.tolist(), program.microbatch.tolist(), program.chunk.tolist(), strict=True)
    return CutProgram(
        {digests[number]: template for number, template in templates.items()},
        tuple(Instance(digests[template], microbatch, chunk) for template, microbatch, chunk in played),
    )
