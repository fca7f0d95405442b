"""Few ranks and few microbatches of a Megatron job that tell what all of them do.

Every rank is run with as few microbatches as the schedule needs and without a warm-up, to see which differ.
Of each class one rank is run again, with a warm-up and microbatches enough to see the steady state of the
pipeline, which is then repeated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from workloads.tracing.drive.rank_classes import (
    DistinctRanks,
    StartRounds,
    TraceReport,
    contiguous_text,
    group_ranks,
)
from workloads.tracing.record.assemble import RankTrace
from workloads.tracing.record.templates import CutProgram, CutTemplate, Instance

if TYPE_CHECKING:
    from workloads.tracing.recipes.megatron.job import MegatronGptJob

#: Up to this many ranks, every single one is run.  Beyond, a sample stands for the rest, with a warning.
MAX_RANKS_RUN = 256

#: The steady state must be seen this many times in a row before it is believed.
MIN_REPEATS = 3


def distinct_ranks(job: MegatronGptJob, start: StartRounds, report: TraceReport) -> DistinctRanks:
    """Run ``job`` as the module says."""
    run, stands_for = sample_ranks(job)
    report.ranks_run = run
    if len(run) < job.world_size:
        report.warnings.append(
            f"world of {job.world_size} ranks: {len(run)} were run (both ends of the tensor-, context- and "
            f"data-parallel axes of every stage); ranks between them are taken to do what the second one does"
        )
    fewest = dict.fromkeys(run, job.fingerprint_microbatches)
    seen = _traces(job, start, "fingerprint", fewest, warm_up=False)
    classes = group_ranks(
        {rank: trace.fingerprint() for rank, trace in seen.items()},
        stands_for,
        {rank: job.stage_of(rank) for rank in range(job.world_size)},
    )
    wanted = {one.representative: job.traced_microbatches(one.stage) for one in classes}
    report.traced_microbatches = max(wanted.values())
    traced = _traces(job, start, "trace", wanted)
    extended = {rank: extended_program(job, trace) for rank, trace in traced.items()}
    missing = sorted(rank for rank, program in extended.items() if program is None)
    if missing:
        report.warnings.append(
            f"no steady state seen in {report.traced_microbatches} microbatches on ranks "
            f"{contiguous_text(missing)}: traced all {job.microbatches}"
        )
        traced |= _traces(job, start, "trace in full", dict.fromkeys(missing, job.microbatches))
    ordered = [traced[one.representative] for one in classes]
    programs = [extended[trace.rank] or trace.program for trace in ordered]
    return DistinctRanks(classes, ordered, programs, [*seen.values(), *ordered])


def _traces(
    job: MegatronGptJob,
    start: StartRounds,
    phase: str,
    microbatches: Mapping[int, int],
    *,
    warm_up: bool = True,
) -> dict[int, RankTrace]:
    """What ranks record with so many microbatches."""
    rounds = start(lambda rank: job.script(microbatches[rank], warm_up=warm_up), phase)
    rounds.run(list(microbatches))
    return rounds.seen


def sample_ranks(job: MegatronGptJob) -> tuple[list[int], dict[int, int]]:
    """Ranks to run, and for every rank of the world the run rank that stands for it.

    Small worlds: every rank, for itself.  Large ones: of each stage, the first two and last two positions
    along the tensor-, context- and data-parallel axis; a position between them is stood for by the
    second.  (Frameworks treat the ends of an axis specially; shards of a buffer may end unevenly, which
    shows at the last.)
    """
    if job.world_size <= MAX_RANKS_RUN:
        return list(range(job.world_size)), {rank: rank for rank in range(job.world_size)}
    stands_for: dict[int, int] = {}
    for rank in range(job.world_size):
        rest, tp = divmod(rank, job.tp)
        rest, cp = divmod(rest, job.cp)
        pp, dp = divmod(rest, job.dp)
        tp, cp, dp = _stand_in(tp, job.tp), _stand_in(cp, job.cp), _stand_in(dp, job.dp)
        stands_for[rank] = ((pp * job.dp + dp) * job.cp + cp) * job.tp + tp
    return sorted(set(stands_for.values())), stands_for


def _stand_in(index: int, size: int) -> int:
    return index if index < 2 or index >= size - 2 else 1


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
