"""Memory of a rank in closed form: what it holds through the step, and the most beside it.

Note [What fills a GPU]
    Static: parameters, gradients, optimizer states; of FSDP those gradients that there are at the peak.  In
    flight: what pieces keep for backward, microbatch by microbatch as the schedule plays (of a split backward
    until its weight gradients are done).  Working and gathered: what the pass at hand allocates besides, and
    units of FSDP, walked in ``working.py``; where the optimizer's step or the start needs more, that
    (``static.py``).  DeepSpeed's engine keeps more: what a stage has sent until its backward
    (``pipe_buffers``), 16-bit gradients beside the fp32 ones (``BF16_Optimizer``), buckets that gradients and
    parameters are copied through (Megatron's are views).  The caching allocator holds more than it hands out:
    :data:`FRAGMENTATION` of what comes and goes and :data:`UNIT_FRAGMENTATION` of FSDP's gathered units,
    fitted to what it holds where it is played (``played.py``); where a compiler plans memory there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import ge, mul
from typing import NamedTuple

from simcore.graph import MemoryProfile
from simcore.graph.schedules import SCHEDULES, Action
from simcore.graph.schedules.play import num_chunks
from simcore.records import dataclass
from workloads.models.pieces import ModelPiece
from workloads.models.storages import Pass
from workloads.parallel.actions import ends_of
from workloads.parallel.handed import kept_bytes
from workloads.parallel.host_shares import largest_share
from workloads.parallel.job import Job
from workloads.parallel.stages import Chunk
from workloads.parallel.static import fullest, static_memory
from workloads.parallel.working import ChunkWalk, WalkedPasses, head_between

#: Shares of what comes and goes, and of units that are gathered, which the allocator holds besides: splits
#: and gaps between blocks.  Fitted to 66 stages of 60 jobs, played (docs/memory.md): 1.8% off in mean.
FRAGMENTATION = 0.05
UNIT_FRAGMENTATION = 0.3


class Occupancy(NamedTuple):
    """Microbatches of each chunk that await their backward, ``whole`` or the second ``half`` of it, and the
    chunk and kind of the pass at hand; ``last``: it is the chunk's last backward.
    """

    whole: tuple[int, ...]
    half: tuple[int, ...]
    chunk: int
    kind: Pass
    last: bool = False


#: Passes of one job that were walked, by the pieces of their chunk and which of them are layers.
_Walked = dict[tuple[tuple[ModelPiece, ...], tuple[int, ...]], WalkedPasses]


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes at the peak of one stage's ranks; see Note [What fills a GPU]."""

    parameters: int
    gradients: int
    optimizer_states: int
    in_flight: int
    working: int
    gathered: int
    buffers: int
    fragmentation: int
    workspace: int

    @property
    def activations(self) -> int:
        """Everything that does not live through the step."""
        lasting = self.in_flight + self.buffers + self.workspace
        return lasting + self.working + self.gathered + self.fragmentation

    @property
    def total(self) -> int:
        """Peak of what the allocator holds."""
        return self.parameters + self.gradients + self.optimizer_states + self.activations


def memory_profile(job: Job, stage: int, actions: Sequence[Action]) -> MemoryProfile:
    """The estimate as a program of the graph carries it."""
    estimate = estimate_memory(job, stage, actions)
    return MemoryProfile(
        parameters=estimate.parameters,
        gradients=estimate.gradients,
        optimizer_states=estimate.optimizer_states,
        activations_peak=estimate.activations,
        peak=estimate.total,
    )


def estimate_memory(job: Job, stage: int, actions: Sequence[Action]) -> MemoryEstimate:
    """Peak of ``stage``, which runs ``actions``."""
    return _estimate(job, stage, occupancies(actions, in_turn=job.is_fsdp))


def peak_bytes(job: Job) -> int:
    """What the allocator holds on the fullest stage.  InputError where its schedule cannot be."""
    job, p = fullest(job), job.parallel
    states = _occupancies_of(
        p.schedule, p.pp, job.num_microbatches, p.virtual_stages, p.microbatch_group,
        job.training.trainable == "none", job.is_fsdp,
    )  # fmt: skip
    pieces = [tuple(chunk.pieces for chunk in chunks) for chunks in job.chunks]
    walked: _Walked = {}
    if job.is_fsdp:
        turns = {(own, held): stage for stage, (own, held) in enumerate(zip(pieces, states, strict=True))}
        return max(_estimate(job, stage, held, walked).total for (_, held), stage in turns.items())
    # Stages of equal pieces differ in what they hold of them alone.
    alike: dict[tuple[tuple[ModelPiece, ...], ...], tuple[int, dict[Occupancy, None]]] = {}
    for stage, held in enumerate(states):
        alike.setdefault(pieces[stage], (stage, {}))[1].update(dict.fromkeys(held))
    return max(_estimate(job, stage, tuple(held), walked).total for stage, held in alike.values())


def least_bytes(job: Job) -> int:
    """Bytes that :func:`peak_bytes` is not below: what lives through the step and what microbatches keep.

    No pass is walked, which is what takes time.  InputError where the job's schedule cannot be.
    """
    job, p = fullest(job), job.parallel
    states = _occupancies_of(
        p.schedule, p.pp, job.num_microbatches, p.virtual_stages, p.microbatch_group,
        job.training.trainable == "none", in_turn=False,
    )  # fmt: skip
    held = 1.0 if job.software.planned_memory else 1.0 + FRAGMENTATION
    most: dict[tuple[tuple[ModelPiece, ...], ...], tuple[int, int]] = {}
    for stage, of_stage in enumerate(states):
        pieces = tuple(chunk.pieces for chunk in job.chunks[stage])
        kept = [kept_bytes(job, chunk)[0] for chunk in job.chunks[stage]]
        flight = max(sum(map(mul, one.whole, kept)) for one in of_stage)
        most[pieces] = max(most.get(pieces, (0, 0)), (flight, stage))
    found = []
    for flight, stage in most.values():
        static = static_memory(job, stage)
        lasts = static.parameters + static.gradients + static.states + static.buckets + static.workspace
        found.append(lasts + int(flight * held))
    return max(found)


def _deferred(job: Job, chunks: Sequence[Chunk]) -> int:
    """What waits for gradients of the head's weight while the last microbatch is at hand."""
    limit, before = job.training.deferred_head_gradients, job.num_microbatches - 1
    count = 0 if limit < 0 else before if limit == 0 else min(limit, before)
    return count * sum(head_between(job, chunk) for chunk in chunks) if count else 0


@lru_cache(maxsize=1 << 12)
def _occupancies_of(
    schedule: str, stages: int, microbatches: int, chunks: int, group: int, forward_only: bool, in_turn: bool
) -> tuple[tuple[Occupancy, ...], ...]:
    """Of every stage of a schedule: jobs that differ in other things share them."""
    if in_turn:
        microbatches = enough_microbatches(schedule, stages, microbatches, chunks, group, forward_only)
    actions = SCHEDULES[schedule].actions(stages, microbatches, chunks, group)
    kept = [[action for action in own if action.kind == "F" or not forward_only] for own in actions]
    if in_turn:
        return tuple(occupancies(own, in_turn=True) for own in kept)
    return tuple(_fullest(occupancies(own)) for own in kept)


def enough_microbatches(
    schedule: str, stages: int, microbatches: int, chunks: int, group: int, forward_only: bool
) -> int:
    """As few microbatches as hold what all of them do: a steady pipeline repeats itself."""
    of_group = group or stages
    least = of_group * (-(-(2 * stages + 2) // of_group))
    if least >= microbatches or microbatches % of_group:
        return microbatches
    few, all_of_them = (
        [
            max((sum(one.whole) + sum(one.half) for one in held), default=0)
            for held in _occupancies_of(schedule, stages, count, chunks, group, forward_only, in_turn=False)
        ]
        for count in (least, microbatches)
    )
    return least if few == all_of_them else microbatches


def _fullest(held: Sequence[Occupancy]) -> tuple[Occupancy, ...]:
    """Those of which no other holds as much of every chunk with the same pass at hand."""
    # Who holds more in all comes before whom he covers.
    order = sorted(range(len(held)), key=lambda k: -sum(held[k].whole) - sum(held[k].half))
    kept: dict[tuple[int, Pass], list[tuple[int, ...]]] = {}
    found: list[int] = []
    for k in order:
        one = held[k]
        counts, others = (*one.whole, *one.half), kept.setdefault((one.chunk, one.kind), [])
        if not any(all(map(ge, other, counts)) for other in others):
            others.append(counts)
            found.append(k)
    return tuple(held[k] for k in sorted(found))


def _estimate(
    job: Job, stage: int, held: Sequence[Occupancy], walked: _Walked | None = None
) -> MemoryEstimate:
    static = static_memory(job, stage)
    peak = _peak(job, job.chunks[stage], held, {} if walked is None else walked)
    peak = peak._replace(
        in_flight=peak.in_flight + _deferred(job, job.chunks[stage]),
        working=peak.working + largest_share(job.chunks[stage]),
    )
    besides, reduced = static.besides
    if besides > peak.in_flight + peak.working + peak.gathered + peak.gradients:
        peak = peak._replace(in_flight=0, working=besides - reduced, gathered=0, gradients=reduced)
    comes_and_goes = peak.in_flight + peak.working + static.buckets
    held_besides = int(FRAGMENTATION * comes_and_goes + UNIT_FRAGMENTATION * peak.gathered)
    lost = 0 if job.software.planned_memory else peak.apart + held_besides
    return MemoryEstimate(
        parameters=static.parameters,
        gradients=static.gradients + peak.gradients,
        optimizer_states=static.states,
        in_flight=peak.in_flight,
        working=peak.working,
        gathered=peak.gathered,
        buffers=static.buckets,
        workspace=static.workspace,
        fragmentation=lost,
    )


def occupancies(actions: Sequence[Action], *, in_turn: bool = False) -> tuple[Occupancy, ...]:
    """What a stage holds while it runs ``actions``, each state once, in order.

    ``in_turn``: of every action in turn, for what FSDP has gathered depends on the ones before.
    """
    chunks = num_chunks([list(actions)])
    whole, half = [0] * chunks, [0] * chunks
    found: list[Occupancy] = []
    lasts = ends_of(actions)[1] if in_turn else ()
    # A state as one number, a digit for each count: most are met again and again.
    digits = [(len(actions) + 1) ** k for k in range(2 * chunks)]
    code, met = 0, set[tuple[int, int, str]]()
    for number, action in enumerate(actions):
        chunk, kind = action.chunk, action.kind
        if kind == "F":
            whole[chunk] += 1
            code += digits[chunk]
        if in_turn or (code, chunk, kind) not in met:
            met.add((code, chunk, kind))
            found.append(Occupancy(tuple(whole), tuple(half), chunk, kind, number in lasts))
        if kind in ("B", "I"):
            whole[chunk] -= 1
            code -= digits[chunk]
        if kind in ("I", "W"):
            change = 1 if kind == "I" else -1
            half[chunk] += change
            code += change * digits[chunks + chunk]
    return tuple(found)


class _Peak(NamedTuple):
    """What microbatches keep at the worst moment, what the pass at hand holds and units of other chunks do,
    and ``gradients`` that FSDP has reduced by then; ``apart``: what pools of other streams reach at other
    moments.
    """

    in_flight: int
    working: int
    gathered: int
    gradients: int
    apart: int


def _peak(job: Job, chunks: Sequence[Chunk], held: Sequence[Occupancy], walked: _Walked) -> _Peak:
    walks = [
        ChunkWalk(job, chunk, walked.setdefault((chunk.pieces, chunk.layers), WalkedPasses()))
        for chunk in chunks
    ]
    worst, aside, compute = (0, 0, 0, 0), (0, 0), 0
    if not job.is_fsdp:  # what is left between halves of backwards is known once one was walked
        for one in held:
            if one.kind == "I":
                walks[one.chunk].passed("I", last=one.last)
    for one in held:
        walk = walks[one.chunk]
        beside = walk.passed(one.kind, last=one.last)
        in_flight, idle, others = 0, -walk.idle, (-walk.idle_aside[0], -walk.idle_aside[1])
        gradients = beside.gradients - walk.idle_gradients
        for whole, half, each in zip(one.whole, one.half, walks, strict=False):
            in_flight += whole * each.kept + half * each.walked.between
            idle += each.idle
            others = others[0] + each.idle_aside[0], others[1] + each.idle_aside[1]
            gradients += each.idle_gradients
        gradients = min(gradients, beside.gathered + idle)
        found = in_flight, beside.working, beside.gathered + idle - gradients, gradients
        aside = max(aside[0], others[0] + beside.aside[0]), max(aside[1], others[1] + beside.aside[1])
        compute = max(compute, in_flight + beside.compute + idle - sum(others))
        worst = max(worst, found, key=sum)
    return _Peak(*worst, apart=max(0, compute + sum(aside) - sum(worst)))
