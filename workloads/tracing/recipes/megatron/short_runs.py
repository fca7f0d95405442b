"""Short runs of a Megatron job's ranks, and which of them need not be run.

Note [Ranks of a stage]
    Ranks of one stage play the same schedule, and differ in few templates: in the shard of the optimizer, in
    whose gradients count in the norm.  Where even the shortest run of the schedule is long (an interleaved
    pipeline needs a microbatch for each stage), only the first rank of a stage is run so; the others, and it,
    run one pass of each chunk outside of the schedule, behind the same warm-up and before the same optimizer.
    What differs there is exchanged, if it is exactly what the first rank plays in the schedule; a rank that
    differs in passes, of which this run shows too few, is run as it is.

Note [Stages between]
    Stages that are neither first nor last have the same layers, as the job says, and differ in when they play
    and with whom.  So of these only the second is run with every kind of rank.  The first rank of another is
    run with hollow layers (Note [Hollow runs]), and is what the second's is with the passes that the hollow
    runs show; this holds only where both hollow runs hold the same bytes, and every pass of one is known from
    the other.  (Stages of even and of odd number send and receive in turn: where a reduction goes on beside,
    the second tells the odd ones, and the third, which it does not tell, the even ones.)  Its further ranks
    differ from it as those of the second stage do from theirs, where these differ in templates that both
    stages have.  What is not told so is run; and where ranks then turn out not to meet, nothing is told any
    more and all of them are run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from workloads.tracing.drive.rank_classes import StartRounds
from workloads.tracing.recipes.megatron.alike import exchanged, filled
from workloads.tracing.record.assemble import RankTrace
from workloads.tracing.record.templates import CutProgram

if TYPE_CHECKING:
    from workloads.tracing.recipes.megatron.job import MegatronGptJob

#: The stage that tells others; fewer stages than it takes to have one more between the ends tell none.
_MODEL, _FEWEST_STAGES = 1, 4


class ShortRuns:
    """Records ranks with as few microbatches as the schedule needs; ``run``: those that were, or outside of
    the schedule, ``seen``: these and those that they told.
    """

    def __init__(self, job: MegatronGptJob, start: StartRounds) -> None:
        fewest = job.fingerprint_microbatches
        self._job = job
        self._whole = start(lambda _: job.script(fewest), "fingerprint")
        self._hollow = start(lambda _: job.script(fewest, hollow=True), "schedule")
        self._alone = start(lambda _: job.script(0), "outside of the schedule")
        self._apart: dict[int, RankTrace] = {}
        self._told: dict[int, RankTrace] = {}
        self._teller: dict[int, int] = {}
        self._telling = True
        self._stride = job.world_size // job.pp

    @property
    def run(self) -> dict[int, RankTrace]:
        """What was recorded."""
        return {**self._apart, **self._whole.seen}

    @property
    def seen(self) -> dict[int, RankTrace]:
        """What was recorded or told."""
        return {**self._told, **self.run}

    def hashes(self, ranks: Sequence[int]) -> dict[int, str]:
        """Of each rank, run now unless others tell it."""
        told = [rank for rank in ranks if self._between(rank)]
        models = [rank % self._stride + _MODEL * self._stride for rank in told]
        leaders = [rank - rank % self._stride for rank in told]
        self._record([*(rank for rank in ranks if rank not in told), *models])
        self._tell(leaders)
        self._tell(told)
        seen = self.seen
        return {rank: seen[rank].fingerprint() for rank in ranks}

    def tell_no_more(self) -> list[int]:
        """From now on every rank is run; returns those that had been told."""
        told = sorted({*self._told, *self._apart})
        self._told, self._apart, self._teller, self._telling = {}, {}, {}, False
        return told

    def side_by_side(self, rank: int) -> tuple[CutProgram, CutProgram]:
        """Short programs of a rank that tells the layers of ``rank``, hollow and whole."""
        teller = self._teller.get(rank, rank)
        self._whole.run(self._new([teller]))
        self._run_hollow([teller])
        return self._hollow.seen[teller].program, self._whole.seen[teller].program

    def _between(self, rank: int) -> bool:
        between = _MODEL < self._job.stage_of(rank) < self._job.pp - 1
        return self._telling and self._job.pp >= _FEWEST_STAGES and between

    def _record(self, ranks: Sequence[int]) -> None:
        """The first rank of a stage as it is, others as they differ from it outside of the schedule."""
        new = [rank for rank in self._new(ranks) if rank not in self._apart]
        if not self._telling or self._job.period == 1:
            self._whole.run(new)
            return
        firsts = [rank - rank % self._stride for rank in new]
        self._whole.run(self._new(firsts))
        apart = [rank for rank in new if rank % self._stride]
        both = dict.fromkeys([*(rank - rank % self._stride for rank in apart), *apart])
        self._alone.run([rank for rank in both if rank not in self._alone.seen])
        for rank in apart:
            first, mine = rank - rank % self._stride, self._alone.seen[rank]
            known = self._whole.seen[first]
            program = exchanged(known.program, self._alone.seen[first].program, mine.program)
            if program is not None:
                self._apart[rank] = replace(mine, program=program, num_microbatches=known.num_microbatches)
        self._whole.run([rank for rank in apart if rank not in self._apart])

    def _tell(self, ranks: Sequence[int]) -> None:
        """Tell ranks between; run those that cannot be told."""
        new = [rank for rank in self._new(ranks) if rank not in self.seen]
        if self._job.period > 1:
            self._tell_leaders([rank for rank in new if rank % self._stride == 0])
        for rank in new:
            found = self._of_stage(rank) if rank % self._stride else None
            if found is not None:
                self._told[rank] = found
        self._record([rank for rank in new if rank not in self._told])

    def _tell_leaders(self, ranks: Sequence[int]) -> None:
        """First ranks of stages, by the second stage's; what it does not tell, by the first of those."""
        model = _MODEL * self._stride
        self._run_hollow([model, *ranks] if ranks else [])
        while ranks:
            found = {rank: self._of_leader(rank, model) for rank in ranks}
            told = {rank: trace for rank, trace in found.items() if trace is not None}
            self._told |= told
            self._teller |= dict.fromkeys(told, model)
            ranks = [rank for rank in ranks if rank not in told]
            if not told:
                return
            model, *ranks = ranks or [model]
            self._record([model])

    def _of_leader(self, rank: int, model: int) -> RankTrace | None:
        """The first rank of a stage, from its hollow run and what was recorded of that of ``model``."""
        hollow, theirs = self._hollow.seen[rank], self._hollow.seen[model]
        if (hollow.memory, hollow.held) != (theirs.memory, theirs.held):
            return None
        whole = self._whole.seen[model]
        program = filled(hollow.program, theirs.program, whole.program)
        if program is None:
            return None
        return replace(hollow, program=program, memory=whole.memory, held=whole.held)

    def _of_stage(self, rank: int) -> RankTrace | None:
        """A further rank of a stage, as that of the second stage differs from the first one there."""
        seen, place = self.seen, rank % self._stride
        first, model, like = (
            seen[one] for one in (rank - place, _MODEL * self._stride, _MODEL * self._stride + place)
        )
        if (first.memory, first.held) != (model.memory, model.held):
            return None
        program = exchanged(first.program, model.program, like.program)
        if program is None:
            return None
        return replace(first, rank=rank, program=program, memory=like.memory, held=like.held)

    def _run_hollow(self, ranks: Sequence[int]) -> None:
        self._hollow.run([rank for rank in dict.fromkeys(ranks) if rank not in self._hollow.seen])

    def _new(self, ranks: Sequence[int]) -> list[int]:
        return [rank for rank in dict.fromkeys(ranks) if rank not in self._whole.seen]
