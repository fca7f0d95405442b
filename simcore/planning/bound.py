"""A bound below the step time of a job: its schedule played with every pass and message alone.

Note [Bound]
    Of each pipeline stage one rank is played, that at the origin of all other axes.  Its passes are written
    by what writes them for the engine and timed alone (Note [Paths]): kernels, collectives in line or beside,
    gathers and reductions of the passes in which they happen, the end of the step.  Passes follow each other
    as the schedule says; what a pass needs from another stage is there when that has sent it and the message
    has travelled alone.  Members of a group that spans stages wait for the last.

    A pass that is like others of its stage is timed once, as a matrix over (max, +): when each stream is
    free behind it as a function of when they were before.  Where two passes take turns (DualPipe), the order
    of their parts is left open: each takes its own time behind its own message, both together the sum, and
    what may run beside the other's compute none: exchanges of tokens, rings, overlapped tensor parallelism.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from simcore.graph.groups import Dim
from simcore.graph.schedules import Action, home, neighbour, overlapped_pairs, virtual_stage
from simcore.planning.paths import BESIDE, HOST, NEVER, Groups, Prices, TimedTemplate, alike, members
from simcore.records import dataclass
from workloads.models.pieces import EP_STREAM
from workloads.parallel.actions import ends_of, is_paired, under_way, write_pass
from workloads.parallel.emit import COMPUTE, OpWriter
from workloads.parallel.finish import finish_step
from workloads.parallel.generate import schedule_of
from workloads.parallel.job import Job
from workloads.parallel.replicated import DP_STREAM
from workloads.parallel.sharded import COMM_STREAM, COPY_STREAM, REPLICA_STREAM

Streams = dict[str, int]
#: Streams whose ops may last from one pass into the next.
_CARRIED: Final = (DP_STREAM, COMM_STREAM, "fsdp_experts", COPY_STREAM, REPLICA_STREAM, EP_STREAM)
#: Groups in which ranks of several stages meet at the end of a step.
_ACROSS: Final = ("world", "mp", "embd")


@dataclass(frozen=True)
class _PassTimes:
    """A kind of pass as a matrix: ``after[before][stream]``, ps."""

    after: Mapping[str, Streams]

    def applied(self, streams: Streams) -> Streams:
        found = dict(streams)
        for before, ends in self.after.items():
            began = streams.get(before, NEVER)
            for stream, end in ends.items():
                if began + end > found.get(stream, NEVER):
                    found[stream] = began + end
        return found


class Bound:
    """The bound of one job; ``prices`` are shared among jobs on the same GPUs.

    ``rank``: whose, of the first stage; that of others lies as far from its origin.
    """

    def __init__(self, job: Job, prices: Prices, *, rank: int = 0) -> None:
        self._job, self._prices, self._rank = job, prices, rank
        p = job.parallel
        self._stages = p.pp
        self._stride = job.mesh.dense["pp"][1]
        self._dims: dict[str, tuple[Dim, ...]] = job.mesh.groups()
        if p.pp > 1:
            self._dims["embd"] = ((2, (p.pp - 1) * self._stride),)
        self._bases = alike(prices.cluster, range(rank, rank + p.pp * self._stride, self._stride))
        self._groups = self._groups_of(self._bases)
        self._schedule, self._placement = schedule_of(
            p, job.num_microbatches, forward_only=job.training.trainable == "none"
        )
        self._chunks = len(job.chunks[0])
        self._passes: dict[tuple[object, ...], _PassTimes] = {}
        self._sent_ps: dict[tuple[int, int, int], int] = {}

    def step_ps(self) -> int:
        """Picoseconds that no simulation of the job falls short of."""
        streams = self._played()
        if any(action.kind != "F" for action in self._schedule[0]):
            meet: dict[str, int] = {}
            for _ in range(2 if self._stages > 1 else 1):
                ends = [self._finished(stage, streams[stage], meet) for stage in range(self._stages)]
                for _, met in ends:
                    for group in _ACROSS:
                        meet[group] = max(meet.get(group, NEVER), met.get(group, NEVER))
            streams = [after for after, _ in ends]
        return max(end for one in streams for stream, end in one.items() if stream != HOST)

    # -- passes ----------------------------------------------------------------------------------

    def _played(self) -> list[Streams]:
        """Each stage's streams behind its last pass, stages taking turns as messages come."""
        schedule, stages = self._schedule, self._stages
        streams: list[Streams] = [dict.fromkeys((COMPUTE, HOST, *_CARRIED), 0) for _ in range(stages)]
        at = [0] * stages
        arrived: dict[tuple[int, bool, int, int], int] = {}  # (stage, forward, microbatch, chunk)
        ends = [ends_of(actions) for actions in schedule]
        pairs = [overlapped_pairs(actions) if self._job.overlaps_passes else {} for actions in schedule]
        seconds = [{second: first for first, second in own.items()} for own in pairs]
        pair_began = [0] * stages
        moved = True
        while moved:
            moved = False
            for stage, actions in enumerate(schedule):
                while at[stage] < len(actions):
                    position = at[stage]
                    action = actions[position]
                    ready = self._ready(stage, action, arrived)
                    if ready is None:
                        break
                    own = streams[stage]
                    free = own[COMPUTE]
                    if position in pairs[stage]:
                        pair_began[stage] = free
                    first, last = position in ends[stage][0], position in ends[stage][1]
                    turns = position in pairs[stage] or position in seconds[stage]
                    one = self._pass(stage, actions, position, first=first, last=last, turns=turns)
                    if position in seconds[stage]:
                        alone = one.applied({**own, COMPUTE: max(pair_began[stage], ready)})
                        after = one.applied(own)
                        done = alone[COMPUTE]
                        after[COMPUTE] = max(after[COMPUTE], done)
                    else:
                        if position in pairs[stage]:
                            after = one.applied(own)
                            done = one.applied({**own, COMPUTE: max(free, ready)})[COMPUTE]
                        else:
                            after = one.applied({**own, COMPUTE: max(free, ready)})
                            done = after[COMPUTE]
                    self._send(stage, action, done, arrived)
                    streams[stage] = after
                    at[stage] += 1
                    moved = True
        return streams

    def _ready(
        self, stage: int, action: Action, arrived: dict[tuple[int, bool, int, int], int]
    ) -> int | None:
        """When what the action needs from elsewhere is there; None: not sent yet."""
        if action.kind == "W":
            return NEVER
        step = -1 if action.kind == "F" else 1
        if neighbour(stage, action.chunk, step, self._stages, self._chunks, self._placement) is None:
            return NEVER
        return arrived.get((stage, action.kind == "F", action.microbatch, action.chunk))

    def _send(
        self, stage: int, action: Action, done: int, arrived: dict[tuple[int, bool, int, int], int]
    ) -> None:
        if action.kind == "W":
            return
        forward = action.kind == "F"
        step = 1 if forward else -1
        other = neighbour(stage, action.chunk, step, self._stages, self._chunks, self._placement)
        if other is None:
            return
        to, chunk = other
        took = self._message_ps(stage, action.chunk, step, to) if to != stage else 0
        arrived[to, forward, action.microbatch, chunk] = done + took

    def _message_ps(self, stage: int, chunk: int, step: int, to: int) -> int:
        key = (stage, chunk, step)
        if key not in self._sent_ps:
            job = self._job
            own = virtual_stage(stage, chunk, self._stages, self._placement)
            boundary = min(own, own + step)
            at, piece = home(boundary, self._stages, self._placement)
            size = job.chunks[at][piece].pieces[-1].output_bytes
            if job.training.scatter_gather_p2p and job.parallel.tp > 1 and not job.shard.sequence_parallel:
                size //= job.parallel.tp
            self._sent_ps[key] = self._prices.message_ps(size, stage * self._stride, to * self._stride)
        return self._sent_ps[key]

    def _pass(
        self,
        stage: int,
        actions: Sequence[Action],
        position: int,
        *,
        first: bool,
        last: bool,
        turns: bool,
    ) -> _PassTimes:
        """The pass at a position, timed once for all that are written alike; ``turns``: it takes turns."""
        job, action = self._job, actions[position]
        chunk = job.chunks[stage][action.chunk]
        paired = turns or (
            job.training.ep_overlap and not job.overlaps_passes and is_paired(actions, position)
        )
        key = (chunk.pieces, action.kind, first, last, paired, turns)
        if key not in self._passes:
            after: dict[str, Streams] = {}
            inputs = [COMPUTE]
            for before in inputs:
                template = self._template(
                    self._groups, self._bases, {before: 0}, hidden=BESIDE if turns else ()
                )
                writer = OpWriter(template, job.software, paired=paired)
                write_pass(writer, job, chunk, action.kind, first=first, last=last)
                after[before] = {stream: end for stream, end in template.streams.items() if end > NEVER // 2}
                if before == COMPUTE:
                    inputs += [stream for stream in _CARRIED if stream in template.streams]
                    # A host that works less than the GPU holds nothing up.
                    if template.syncs or 2 * template.host_ps > template.streams.get(COMPUTE, 0):
                        inputs.append(HOST)
                    else:
                        after[HOST] = {HOST: template.host_ps}
            self._passes[key] = _PassTimes(after)
        return self._passes[key]

    def _template(
        self,
        groups: Mapping[str, Groups],
        ranks: tuple[int, ...],
        streams: Streams,
        meet: Mapping[str, int] | None = None,
        hidden: Collection[str] = (),
    ) -> TimedTemplate:
        return TimedTemplate(self._prices, groups, ranks, streams, meet, hidden)

    def _groups_of(self, ranks: tuple[int, ...]) -> dict[str, Groups]:
        return {name: tuple([members(dims, rank) for rank in ranks]) for name, dims in self._dims.items()}

    # -- the end of the step ---------------------------------------------------------------------

    def _finished(self, stage: int, streams: Streams, meet: Mapping[str, int]) -> tuple[Streams, Streams]:
        """A stage's streams at the end of the step, and when it was at each meeting."""
        job = self._job
        ranks = (self._rank + stage * self._stride,)
        template = self._template(self._groups_of(ranks), ranks, streams, meet)
        actions = self._schedule[stage]
        overlaps = job.training.ep_overlap and (
            job.overlaps_passes or any(is_paired(actions, number) for number in range(len(actions)))
        )
        finish_step(OpWriter(template, job.software), job, stage, under_way(job, stage, overlaps=overlaps))
        return template.streams, template.met
