"""Small jobs and programs that the tracing tests share."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from workloads.tracing import MegatronGptJob
from workloads.tracing.recording import COLUMNS
from workloads.tracing.templates import CUT_COLUMNS, CutProgram, CutTemplate

#: Modules without which nothing can be traced.
NEEDS = ("torch", "megatron", "einops")

SMALL = MegatronGptJob(
    layers=4, hidden=128, heads=4, seq=64, vocab=256, tp=2, pp=2, dp=1, microbatches=9, recompute="full"
)


def job(**changes: Any) -> MegatronGptJob:
    """:data:`SMALL` with changes."""
    return replace(SMALL, **changes)


def column(template: CutTemplate, name: str) -> list[Any]:
    """One column of a template."""
    index = (*COLUMNS, *CUT_COLUMNS).index(name)
    return [row[index] for row in template.rows]


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
