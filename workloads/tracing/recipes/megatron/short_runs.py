"""Short runs of a Megatron job's ranks, and which of them need not be run.

Note [Stages between]
    Stages that are neither first nor last have the same layers, as the job says, and differ in when they play
    and with whom.  So of these only the second is run with every kind of rank.  The first rank of another is
    run with hollow layers (Note [Hollow runs]), and is what the second's is with the passes that the hollow
    runs show; this holds only where both hollow runs hold the same bytes, and every pass of one is known from
    the other.  Its further ranks differ from it as those of the second stage do from theirs, where these
    differ in templates that both stages have.  What is not told so is run; and where ranks then turn out not
    to meet, nothing is told any more and all of them are run.
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
    """Records ranks with as few microbatches as the schedule needs; ``run``: those that were, ``seen``: these
    and those that they told.
    """

    def __init__(self, job: MegatronGptJob, start: StartRounds) -> None:
        fewest = job.fingerprint_microbatches
        self._job = job
        self._whole = start(lambda _: job.script(fewest), "fingerprint")
        self._hollow = start(lambda _: job.script(fewest, hollow=True), "schedule")
        self._told: dict[int, RankTrace] = {}
        self._telling = job.pp >= _FEWEST_STAGES
        self._stride = job.world_size // job.pp

    @property
    def run(self) -> dict[int, RankTrace]:
        """What was recorded."""
        return self._whole.seen

    @property
    def seen(self) -> dict[int, RankTrace]:
        """What was recorded or told."""
        return {**self._told, **self._whole.seen}

    def hashes(self, ranks: Sequence[int]) -> dict[int, str]:
        """Of each rank, run now unless others tell it."""
        told = [rank for rank in ranks if self._between(rank)]
        models = [rank % self._stride + _MODEL * self._stride for rank in told]
        leaders = [rank - rank % self._stride for rank in told]
        self._whole.run(self._new([*(rank for rank in ranks if rank not in told), *models]))
        self._tell(leaders)
        self._tell(told)
        seen = self.seen
        return {rank: seen[rank].fingerprint() for rank in ranks}

    def tell_no_more(self) -> list[int]:
        """From now on every rank is run; returns those that had been told."""
        told, self._told, self._telling = sorted(self._told), {}, False
        return told

    def side_by_side(self, rank: int) -> tuple[CutProgram, CutProgram]:
        """Short programs of a rank that tells the layers of ``rank``, hollow and whole."""
        teller = rank if rank in self._whole.seen else rank % self._stride + _MODEL * self._stride
        self._run_hollow([teller])
        return self._hollow.seen[teller].program, self._whole.seen[teller].program

    def _between(self, rank: int) -> bool:
        return self._telling and _MODEL < self._job.stage_of(rank) < self._job.pp - 1

    def _tell(self, ranks: Sequence[int]) -> None:
        """Tell ranks between; run those that cannot be told."""
        new = [rank for rank in self._new(ranks) if rank not in self._told]
        if self._job.period > 1:
            leaders = [rank for rank in new if rank % self._stride == 0]
            self._run_hollow([_MODEL * self._stride, *leaders] if leaders else [])
        for rank in new:
            found = self._of_stage(rank) if rank % self._stride else self._of_leader(rank)
            if found is not None:
                self._told[rank] = found
        self._whole.run([rank for rank in new if rank not in self._told])

    def _of_leader(self, rank: int) -> RankTrace | None:
        """The first rank of a stage, from its hollow run and the second stage's first."""
        if self._job.period == 1:
            return None
        model = _MODEL * self._stride
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
