"""Few ranks and few microbatches of a Megatron job that tell what all of them do.

Note [Short and long runs]
    Ranks that may differ are run with as few microbatches as the schedule needs, behind a warm-up, and told
    apart by what they recorded.  Of each stage one rank is run again, with microbatches enough to see the
    steady state of the pipeline, which is then repeated; of an interleaved pipeline, whose steady state takes
    many microbatches, with hollow layers (Note [Hollow runs]).  The others of the stage differ from it in few
    templates (whose gradients count in the norm, whose shard of the optimizer ends where), which their short
    runs show side by side: with these exchanged, its program is theirs.

    Short runs of stages that are neither first nor last are told by those of the second
    (:mod:`workloads.tracing.recipes.megatron.short_runs`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from simcore.graph.layout import contiguous_text
from workloads.tracing.drive.rank_classes import (
    DistinctRanks,
    StartRounds,
    TraceReport,
    group_ranks,
)
from workloads.tracing.drive.rank_search import RankSearch
from workloads.tracing.recipes.megatron.alike import exchanged, filled
from workloads.tracing.recipes.megatron.short_runs import ShortRuns
from workloads.tracing.record.assemble import RankClass, RankTrace
from workloads.tracing.record.templates import CutProgram, CutTemplate, Instance

if TYPE_CHECKING:
    from workloads.tracing.recipes.megatron.job import MegatronGptJob

#: Ranks run at most; beyond, some stand in for others that may differ, with a warning.
MAX_RANKS_RUN = 256

#: The steady state must be seen this many times in a row before it is believed.
MIN_REPEATS = 3


def distinct_ranks(job: MegatronGptJob, start: StartRounds, report: TraceReport) -> DistinctRanks:
    """Run ``job`` as the module says."""
    short = ShortRuns(job, start)
    search = RankSearch(short.hashes, MAX_RANKS_RUN, lambda rank: short.seen[rank].held)
    search.ends(job.world_size)
    programs = _Programs(job, start, short, report)

    def found(hashes: dict[int, str]) -> DistinctRanks:
        report.ranks_run = sorted(short.run)
        classes = group_ranks(hashes, {rank: job.stage_of(rank) for rank in hashes})
        ran = {one: _ran_of(one, hashes, search.hashes) for one in classes}
        programs.find([(one.stage, ran[one]) for one in classes])
        traces = [short.seen[ran[one]] for one in classes]
        known = [programs.of_rank[trace.rank] for trace in traces]
        return DistinctRanks(classes, traces, known, list(short.run.values()), search.assumed, settle)

    def settle(ranks: Sequence[int]) -> DistinctRanks | None:
        told = short.tell_no_more()
        search.forget(told)
        programs.forget(told)
        hashes = search.settle([*told, *ranks])
        return None if hashes is None else found(hashes)

    return found(search.classes(job.axes))


def _ran_of(one: RankClass, hashes: Mapping[int, str], run: Mapping[int, str]) -> int:
    """The lowest rank of a class that was run; else any that recorded the same."""
    digest = hashes[one.representative]
    return min(
        [rank for rank in one.ranks if rank in run] or [r for r, found in run.items() if found == digest]
    )


class _Programs:
    """Programs at full length, of a long run of one rank of each stage: see Note [Short and long runs]."""

    def __init__(
        self, job: MegatronGptJob, start: StartRounds, short: ShortRuns, report: TraceReport
    ) -> None:
        self.of_rank: dict[int, CutProgram] = {}
        self._job = job
        self._start = start
        self._short = short
        self._report = report
        self._leaders: dict[int, int] = {}

    def forget(self, ranks: Sequence[int]) -> None:
        """Find the programs of ``ranks`` anew."""
        for rank in ranks:
            self.of_rank.pop(rank, None)

    def find(self, ranks: Sequence[tuple[int, int]]) -> None:
        """Programs of ``ranks``, each with its stage."""
        for stage, rank in ranks:
            self._leaders.setdefault(stage, rank)
        self._run_long([rank for stage, rank in ranks if self._leaders[stage] == rank])
        for stage, rank in ranks:
            leader = self._leaders[stage]
            if rank not in self.of_rank:
                mine, known = (self._short.seen[one].program for one in (rank, leader))
                like = exchanged(self.of_rank[leader], known, mine)
                if like is not None:
                    self.of_rank[rank] = like
        self._run_long([rank for _, rank in ranks])

    def _run_long(self, ranks: Sequence[int]) -> None:
        """Run those of ``ranks`` whose program is not known, and repeat their steady states."""
        job = self._job
        new = [rank for rank in ranks if rank not in self.of_rank]
        if not new:
            return
        wanted = {rank: job.traced_microbatches(job.stage_of(rank)) for rank in new}
        self._report.traced_microbatches = max(self._report.traced_microbatches, *wanted.values())
        found = self._filled(wanted) if job.period > 1 else {}
        rest = {rank: count for rank, count in wanted.items() if found.get(rank) is None}
        if rest:
            traced = self._traces("trace", rest)
            found |= {rank: extended_program(job, trace) for rank, trace in traced.items()}
        missing = sorted(rank for rank, program in found.items() if program is None)
        if missing:
            self._report.warnings.append(
                f"no steady state seen in {self._report.traced_microbatches} microbatches on ranks "
                f"{contiguous_text(missing)}: traced all {job.microbatches}"
            )
            whole = self._traces("trace in full", dict.fromkeys(missing, job.microbatches))
            found |= {rank: trace.program for rank, trace in whole.items()}
        self.of_rank |= {rank: program for rank, program in found.items() if program is not None}

    def _filled(self, wanted: Mapping[int, int]) -> dict[int, CutProgram | None]:
        """Programs of long hollow runs, their templates exchanged for those of short runs of the whole model;
        None where these do not tell.
        """
        job = self._job
        long = self._traces("schedule", wanted, hollow=True)
        found: dict[int, CutProgram | None] = {}
        for rank, count in wanted.items():
            whole = filled(long[rank].program, *self._short.side_by_side(rank))
            found[rank] = whole and extend(whole, count, job.microbatches, job.period)
        return found

    def _traces(
        self, phase: str, microbatches: Mapping[int, int], *, hollow: bool = False
    ) -> dict[int, RankTrace]:
        """What ranks record with so many microbatches."""
        rounds = self._start(lambda rank: self._job.script(microbatches[rank], hollow=hollow), phase)
        rounds.run(list(microbatches))
        return rounds.seen


def extended_program(job: MegatronGptJob, trace: RankTrace) -> CutProgram | None:
    """The program of one trace at the job's number of microbatches; None when it cannot be extended."""
    return extend(trace.program, trace.num_microbatches, job.microbatches, job.period)


def extend(program: CutProgram, traced: int, wanted: int, shift: int) -> CutProgram | None:
    """``program``, recorded with ``traced`` microbatches, as if recorded with ``wanted``.

    ``shift`` is how many microbatches one period of the schedule advances.  None when no period repeats
    :data:`MIN_REPEATS` times, or the result would not play every microbatch forward and backward once on each
    model chunk.
    """
    if traced == wanted:
        return program
    copies, rest = divmod(wanted - traced, shift)
    if copies < 0 or rest:
        return None
    found = _find_period(program.skeleton, program.templates, shift)
    if found is None:
        return None
    start, length = found
    block = program.skeleton[start : start + length]
    middle = [_later(entry, copy * shift) for copy in range(copies + 1) for entry in block]
    tail = [_later(entry, copies * shift) for entry in program.skeleton[start + length :]]
    skeleton = (*program.skeleton[:start], *middle, *tail)
    if not _plays_everything(skeleton, program.templates, wanted):
        return None
    return CutProgram(program.templates, skeleton)


def _find_period(
    skeleton: tuple[Instance, ...], templates: Mapping[str, CutTemplate], shift: int
) -> tuple[int, int] | None:
    """(start, length) of the last repeat of the shortest period that advances ``shift`` microbatches."""
    for length in range(1, len(skeleton) // MIN_REPEATS + 1):
        run = 0
        best_end, best_run = 0, 0
        for index in range(len(skeleton) - length):
            run = run + 1 if skeleton[index + length] == _later(skeleton[index], shift) else 0
            if run > best_run:
                best_end, best_run = index + 1, run
        if best_run < (MIN_REPEATS - 1) * length:
            continue
        block = skeleton[best_end : best_end + length]
        kinds = Counter(templates[entry.template].name for entry in block)
        chunks = len({entry.chunk for entry in skeleton})
        if kinds["fwd"] == kinds["bwd"] == shift * chunks:
            return best_end, length
    return None


def _later(entry: Instance, microbatches: int) -> Instance:
    if entry.microbatch < 0:
        return entry
    return Instance(entry.template, entry.microbatch + microbatches, entry.chunk)


def _plays_everything(
    skeleton: tuple[Instance, ...], templates: Mapping[str, CutTemplate], microbatches: int
) -> bool:
    played = Counter(
        (templates[entry.template].name, entry.microbatch, entry.chunk)
        for entry in skeleton
        if templates[entry.template].name in ("fwd", "bwd")
    )
    chunks = {entry.chunk for entry in skeleton}
    expected = {
        (kind, mb, chunk) for kind in ("fwd", "bwd") for mb in range(microbatches) for chunk in chunks
    }
    return set(played) == expected and set(played.values()) == {1}
