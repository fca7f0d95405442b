"""Which ranks do the same?  Found by hashing what each recorded, never assumed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simcore.records import dataclass
from workloads.tracing.record.assemble import RankClass, RankTrace
from workloads.tracing.record.templates import CutProgram

if TYPE_CHECKING:
    from workloads.tracing.drive.others_batches import OthersBatches
    from workloads.tracing.drive.rounds import Rounds
    from workloads.tracing.drive.script_job import ScriptJob

#: Gives rounds of runs from the job of each rank and the name of the phase.
StartRounds = Callable[["Callable[[int], ScriptJob]", str], "Rounds"]

#: What a report of a script has no use for.
_OF_RECIPES = ("traced_microbatches",)


@dataclass
class TraceReport:
    """What happened while tracing, beside the graph.  ``processes``: how many were started in each phase;
    ``traced_microbatches``: of a recipe, before its programs were extended; values, holders and peaks are
    those of scripts; ``held``: by ranks and category the storages that last, runs of BYTESxCOUNT;
    ``not_run``: what is thought of ranks that were not run.
    """

    ranks_run: list[int] = field(default_factory=list)
    processes: dict[str, int] = field(default_factory=dict)
    values: list[dict[str, Any]] = field(default_factory=list)
    holders: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    peak_bytes_by_phase: dict[str, dict[str, int]] = field(default_factory=dict)
    held: dict[str, dict[str, str]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    not_run: str = ""
    traced_microbatches: int = 0

    def write(self, folder: Path) -> None:
        """``trace.json`` in the graph's folder."""
        content = asdict(self)
        for name in ("values", "holders", "peak_bytes_by_phase") if self.traced_microbatches else _OF_RECIPES:
            del content[name]
        (folder / "trace.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class DistinctRanks:
    """``classes`` of ranks that do the same; in equal order what a rank of each recorded and its program at
    full length; ``seen``: everything that was recorded; ``assumed``: ranks that a neighbour speaks for which
    is not known to do the same.  ``settle``: runs ranks that disagree with others; None when all of them have
    been run, or no more may be.  ``batches``: what ranks read (None: a recipe's, made of its options).
    """

    classes: Sequence[RankClass]
    traces: Sequence[RankTrace]
    programs: Sequence[CutProgram]
    seen: Sequence[RankTrace]
    assumed: int
    settle: Callable[[Sequence[int]], DistinctRanks | None]
    batches: OthersBatches | None = None

    @property
    def not_run(self) -> str:
        """What is thought of ranks that were not run; "": there are none, or a recipe's options tell."""
        return self.batches.said_of_others() if self.batches is not None else ""


def group_ranks(fingerprints: Mapping[int, str], stage_of: Mapping[int, int]) -> list[RankClass]:
    """Classes by (stage, fingerprint), ordered by stage, then by lowest rank."""
    members: dict[tuple[int, str], list[int]] = {}
    for rank in sorted(fingerprints):
        members.setdefault((stage_of[rank], fingerprints[rank]), []).append(rank)
    classes = [RankClass(stage, tuple(ranks)) for (stage, _), ranks in members.items()]
    return sorted(classes, key=lambda one: (one.stage, one.representative))
