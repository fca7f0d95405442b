"""A bound below the step time from the two ends of each stage's schedule, quick enough for all candidates.

Note [Rough bound]
    A stage cannot begin before its first pass has what the stages before it make, and what is behind its last
    pass still has to pass the stages before it.  Between the two lies at least all of its own work:

        head (forwards before it, messages) + own passes + tail (backwards behind it, messages)

    which is the step time of 1F1B with equal stages, (m + p - 1)(F + B) (arXiv 2104.04473, section 2.2.1).
    Passes cost what their pieces do one after the other (Note [Paths]), without reductions, gathers and the
    end of the step.  Copies to the host and back take their turns on streams of their own, beside all that.
    Pieces are timed once for all candidates that share them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from operator import attrgetter
from typing import Final, NamedTuple

from simcore.graph import OpHandle
from simcore.graph.schedules import SCHEDULES, Action, home, num_virtual, virtual_stage
from simcore.planning.paths import BESIDE, NEVER, Groups, Prices, TimedTemplate, alike, members
from workloads.models.pieces import EP_STREAM, OFFLOAD_STREAM, RELOAD_STREAM, KernelLaunch, ModelPiece
from workloads.models.software import SoftwareSpec
from workloads.parallel.emit import COMPUTE, OpWriter
from workloads.parallel.job import Job
from workloads.parallel.passes import Gradients, backward_part

#: Streams of copies to the host and back, which go beside other pieces.
_COPIES: Final = (OFFLOAD_STREAM, RELOAD_STREAM)
_KIND_AND_CHUNK: Final = attrgetter("kind", "chunk")
#: Groups in which ranks meet within a piece.
_INSIDE: Final = ("tp", "cp", "ep", "etp", "world", "intra", "inter")
#: Groups and pieces in them that are remembered: a few shards' worth, as candidates in a row share them.
_GROUPS: Final = 16
_REMEMBERED: Final = 256


class _Ends(NamedTuple):
    """A stage of a schedule: chunk of its first pass and of the last that others wait for.

    ``counts``: passes up to that one by (kind, chunk); ``later``: those behind it.
    """

    first: int
    last: int
    counts: tuple[tuple[str, int, int], ...]
    later: tuple[tuple[str, int, int], ...]


class RoughBounds:
    """Rough bounds of jobs on the same GPUs; see Note [Rough bound]."""

    def __init__(self, prices: Prices) -> None:
        self.prices = prices
        self._pieces: dict[tuple[object, ...], _Timed] = {}

    def step_ps(self, job: Job, *, rank: int = 0) -> int:
        """Picoseconds that no simulation of ``job`` falls short of, by ``rank`` of the first stage and those
        of the others that lie as far from their origins.
        """
        p = job.parallel
        ends = _ends_of(
            p.schedule, p.pp, job.num_microbatches, p.virtual_stages, p.microbatch_group,
            job.training.trainable == "none",
        )  # fmt: skip
        placement, chunks = p.placement, len(job.chunks[0])
        places = [home(v, p.pp, placement) for v in range(num_virtual(p.pp, chunks, placement))]
        stride = job.mesh.dense["pp"][1]
        bases = alike(self.prices.cluster, range(rank, rank + p.pp * stride, stride))
        kinds = {kind for own in ends for kind, _, _ in (*own.counts, *own.later)}
        timed = self.timed(job, bases)
        took = {
            kind: [timed.chunk_ps(job.chunks[stage][chunk].pieces, kind) for stage, chunk in places]
            for kind in kinds
        }
        back = took.get("B") or took.get("I") or [0] * len(places)
        heads, tails = [0], [0]  # before each virtual stage's first forward, behind its last backward
        for number, ((stage, chunk), (to, _)) in enumerate(pairwise(places)):
            sent = 0
            if to != stage:
                size = job.chunks[stage][chunk].pieces[-1].output_bytes
                if job.training.scatter_gather_p2p and p.tp > 1 and not job.shard.sequence_parallel:
                    size //= p.tp
                sent = min(
                    self.prices.message_ps(size, stage * stride, to * stride),
                    self.prices.message_ps(size, to * stride, stage * stride),
                )
            heads.append(heads[-1] + took["F"][number] + sent)
            tails.append(tails[-1] + back[number] + sent)

        def work_ps(stage: int, counts: Sequence[tuple[str, int, int]]) -> int:
            return sum(
                count * took[kind][virtual_stage(stage, chunk, p.pp, placement)]
                for kind, chunk, count in counts
            )

        found = 0
        for stage, own in enumerate(ends):
            until = heads[virtual_stage(stage, own.first, p.pp, placement)] + work_ps(stage, own.counts)
            behind = tails[virtual_stage(stage, own.last, p.pp, placement)] if len(kinds) > 1 else 0
            found = max(found, until + max(behind, work_ps(stage, own.later)))
        return max(found, self._copies_ps(job, ends, timed) if job.training.offload else 0)

    def _copies_ps(self, job: Job, ends: Sequence[_Ends], timed: _Timed) -> int:
        """What the copies of the stage that moves most take: one after the other each way, on few engines."""
        most = 0
        for chunks, own in zip(job.chunks, ends, strict=True):
            ways = [0, 0]
            for kind, chunk, count in (*own.counts, *own.later):
                ways[kind != "F"] += count * timed.copies_ps(chunks[chunk].pieces, kind)
            most = max(most, *ways, sum(ways) // self.prices.cluster.gpu.copy_engines)
        return most

    def timed(self, job: Job, bases: tuple[int, ...]) -> _Timed:
        """Passes of pieces of jobs whose groups inside a stage are those of ``job``, for any of ``bases``."""
        dims = job.mesh.groups()
        inside = tuple((name, dims[name]) for name in _INSIDE if name in dims)
        keeps = job.reduces_each or job.gradients_start_empty or job.reduces_at_the_end
        beside = BESIDE if job.overlaps_passes else (EP_STREAM,) if job.training.ep_overlap else ()
        hidden = (*beside, *_COPIES)
        key = (job.software, keeps, hidden, bases, inside)
        if key not in self._pieces:
            if len(self._pieces) >= _GROUPS:
                self._pieces.clear()
            groups: dict[str, Groups] = {
                name: tuple([members(own, base) for base in bases]) for name, own in inside
            }
            self._pieces[key] = _Timed(
                self.prices, job.software, "keep" if keeps else "add", groups, bases, hidden
            )
        return self._pieces[key]


class _Timed:
    """Passes of pieces in the same groups, ps: each piece once, for all candidates that share it."""

    def __init__(
        self,
        prices: Prices,
        software: SoftwareSpec,
        gradients: Gradients,
        groups: dict[str, Groups],
        bases: tuple[int, ...],
        hidden: tuple[str, ...],
    ) -> None:
        self._prices, self._software, self._gradients = prices, software, gradients
        self._groups, self._bases, self._hidden = groups, bases, hidden
        self._known: dict[tuple[ModelPiece, str], int] = {}

    def chunk_ps(self, pieces: Sequence[ModelPiece], kind: str) -> int:
        """A pass of ``kind`` over ``pieces``."""
        return sum([self._piece_ps(piece, kind) for piece in pieces])

    def copies_ps(self, pieces: Sequence[ModelPiece], kind: str) -> int:
        """Copies to the host, or back, of a pass over ``pieces``."""
        return sum(
            self._prices.kernel_ps(
                {
                    "name": kernel.name, "op_class": "copy", "bytes_read": kernel.bytes_read,
                    "bytes_written": kernel.bytes_read,
                },
                is_copy=True,
            )
            for piece in pieces
            for kernel in self._kernels(piece, kind)
            if kernel.stream in _COPIES
        )  # fmt: skip

    def _kernels(self, piece: ModelPiece, kind: str) -> Sequence[KernelLaunch]:
        return piece.forward if kind == "F" else backward_part(kind, self._gradients)(piece)

    def _piece_ps(self, piece: ModelPiece, kind: str) -> int:
        key = (piece, kind)
        if key not in self._known:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            template = TimedTemplate(
                self._prices, self._groups, self._bases, {COMPUTE: 0}, hidden=self._hidden
            )
            writer = OpWriter(template, self._software)
            writer.kernels(self._kernels(piece, kind), phase="fwd")
            waits = [template.ended(one) for one in writer.taken() if isinstance(one, OpHandle)]
            self._known[key] = max(0, template.streams.get(COMPUTE, NEVER), *waits)
        return self._known[key]


@lru_cache(maxsize=1 << 12)
def _ends_of(
    schedule: str, stages: int, microbatches: int, chunks: int, group: int, forward_only: bool
) -> tuple[_Ends, ...]:
    """Of every stage of a schedule: jobs that differ in other things share them."""
    kinds = ("F",) if forward_only else ("F", "B", "I", "W")
    return tuple(
        _ends([action for action in actions if action.kind in kinds])
        for actions in SCHEDULES[schedule].actions(stages, microbatches, chunks, group)
    )


def _ends(actions: Sequence[Action]) -> _Ends:
    last = len(actions) - 1
    while last > 0 and actions[last].kind == "W":
        last -= 1

    def counted(some: Sequence[Action]) -> tuple[tuple[str, int, int], ...]:
        counts = Counter(map(_KIND_AND_CHUNK, some))
        return tuple((kind, chunk, count) for (kind, chunk), count in counts.items())

    until, later = counted(actions[: last + 1]), counted(actions[last + 1 :])
    return _Ends(actions[0].chunk, actions[last].chunk, until, later)
