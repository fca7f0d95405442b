"""Cut a recording into templates and a skeleton, position-independently; extend the skeleton.

Note [Position-independent templates]
    A template says nothing about where it is played: references to ops of the same instance are relative
    rows, others count back on a stream from the instance's start (:class:`simcore.graph.ops.EdgeTable`),
    groups are symbols, peers are differences, layers are numbered within the model chunk.  Equal work then
    has equal bytes, whatever the microbatch or rank, and is found by hashing.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from itertools import pairwise

from simcore.graph.ops import EdgeKind, OpKind
from simcore.records import dataclass
from workloads.tracing.record.recording import (
    IN_SHAPES,
    KIND,
    MODULE,
    NAME,
    PHASE,
    RawOp,
    RecordedSegment,
    Recording,
    Value,
)

#: (dst row, src row or -1, kind, external stream, external back)
Edge = tuple[int, int, int, str, int]
#: (after row, bytes, owner row or -1, scope)
FreeRow = tuple[int, int, int, int]
Row = tuple[Value, ...]

#: Columns that the cut adds behind :data:`workloads.tracing.record.recording.COLUMNS`.
CUT_COLUMNS = ("batch", "forward_op", "alloc_bytes")

#: Scopes of what a template frees: made in it, in the forward pass of its backward pass, elsewhere.
_INSIDE, _FORWARD, ELSEWHERE = 0, 1, 2

#: Kinds of segments that run a backward pass; "wgrad": of weights only, apart from that of inputs.
_BACKWARD = ("bwd", "wgrad")


@dataclass(frozen=True)
class CutTemplate:
    """One template; all rows and references are relative to its own first op."""

    name: str
    rows: tuple[Row, ...]
    edges: tuple[Edge, ...]
    frees: tuple[FreeRow, ...]

    def digest(self) -> str:
        """Hash of everything recorded."""
        content = repr((self.name, self.rows, self.edges, self.frees)).encode()
        return hashlib.blake2b(content, digest_size=16).hexdigest()

    def memory(self) -> tuple[int, int]:
        """(change, highest rise) of live bytes while the template plays, relative to its start."""
        frees: dict[int, int] = defaultdict(int)
        for after, num_bytes, _, _ in self.frees:
            frees[after] += num_bytes
        live = -frees[-1]
        highest = max(0, live)
        for row, columns in enumerate(self.rows):
            live += int(columns[-1])
            highest = max(highest, live)
            live -= frees[row]
        return live, highest


@dataclass(frozen=True)
class Instance:
    """One entry of a skeleton: a template by digest, its microbatch (-1: none) and model chunk."""

    template: str
    microbatch: int
    chunk: int


@dataclass(frozen=True)
class CutProgram:
    """A rank's step: its templates by digest, and the order in which they are played."""

    templates: dict[str, CutTemplate]
    skeleton: tuple[Instance, ...]

    def digest(self) -> str:
        """Hash of templates and order; equal for ranks that do the same."""
        content = repr([(entry.template, entry.microbatch, entry.chunk) for entry in self.skeleton]).encode()
        return hashlib.blake2b(content, digest_size=16).hexdigest()

    def column(self, index: int) -> list[Value]:
        """One column of all rows of all templates."""
        return [row[index] for template in self.templates.values() for row in template.rows]

    def peak_memory(self) -> int:
        """Highest live bytes of storages born in the step."""
        change = {digest: template.memory() for digest, template in self.templates.items()}
        live = peak = 0
        for entry in self.skeleton:
            net, rise = change[entry.template]
            peak = max(peak, live + rise)
            live += net
        return peak


def cut(recording: Recording) -> CutProgram:
    """Templates and skeleton of one recording.  Segments without ops vanish."""
    return _Cutter(recording).cut()


class _Cutter:
    def __init__(self, recording: Recording) -> None:
        self._ops = recording.ops
        bounds = [*recording.segments, RecordedSegment("end", -1, 0, len(recording.ops))]
        self._segments = [
            (segment, following.first)
            for segment, following in pairwise(bounds)
            if segment.first < following.first
        ]
        self._segment_of = [
            index for index, (segment, end) in enumerate(self._segments) for _ in range(segment.first, end)
        ]
        self._forward_start = {
            (segment.microbatch, segment.chunk): segment.first
            for segment, _ in self._segments
            if segment.kind == "fwd"
        }
        # (stream, other stream) -> latest op of the other that the stream waits for, or waits for or reads.
        self._waited: dict[tuple[str, str], int] = {}
        self._followed: dict[tuple[str, str], int] = {}
        self._position: list[int] = []
        counts: dict[str, int] = defaultdict(int)
        for op in self._ops:
            self._position.append(counts[op.stream])
            counts[op.stream] += 1
        self._frees: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for free in recording.frees:
            self._frees[self._segment_of[free.after]].append((free.after, free.num_bytes, free.owner))

    def cut(self) -> CutProgram:
        templates: dict[str, CutTemplate] = {}
        digests = []
        issued: dict[str, int] = defaultdict(int)
        for index, (segment, end) in enumerate(self._segments):
            template = self._template(index, segment, end, issued)
            digest = template.digest()
            templates.setdefault(digest, template)
            digests.append(digest)
            for op in self._ops[segment.first : end]:
                issued[op.stream] += 1
        skeleton = tuple(Instance(digest, *self._place(index)) for index, digest in enumerate(digests))
        return CutProgram(templates, skeleton)

    def _place(self, index: int) -> tuple[int, int]:
        """Microbatch and chunk of an instance; an exchange belongs to what it sends, else to what follows."""
        segment, end = self._segments[index]
        if segment.kind != "exchange":
            return segment.microbatch, segment.chunk
        sends = any(op.columns[KIND] == OpKind.SEND for op in self._ops[segment.first : end])
        neighbours = self._segments[index - 1 :: -1] if sends and index else self._segments[index + 1 :]
        for other, _ in neighbours:
            if other.kind in ("fwd", *_BACKWARD):
                return other.microbatch, other.chunk
        return -1, 0

    def _template(
        self, index: int, segment: RecordedSegment, end: int, issued: dict[str, int]
    ) -> CutTemplate:
        start = segment.first
        forward = self._forward_start.get((segment.microbatch, segment.chunk), -1)
        originals = self._recomputed(segment, end, forward)
        launches: dict[int, int] = {}
        rows, edges = [], []
        for number in range(start, end):
            op = self._ops[number]
            batch = launches.setdefault(op.launch, len(launches)) if op.launch != -1 else -1
            link = originals.get(number, originals.get(op.forward, op.forward))
            inside = forward >= 0 and segment.kind in _BACKWARD and forward <= link < start
            rows.append((*op.columns, batch, link - forward if inside else -1, op.alloc_bytes))
            edges += [(number - start, *edge) for edge in self._edges(op, start, issued)]
        frees = []
        for after, num_bytes, owner in self._frees.get(index, ()):
            if owner >= start:
                frees.append((after - start, num_bytes, owner - start, _INSIDE))
            elif segment.kind in _BACKWARD and self._belongs_to_forward(owner, segment):
                frees.append((after - start, num_bytes, owner - forward, _FORWARD))
            else:
                frees.append((after - start, num_bytes, -1, ELSEWHERE))
        return CutTemplate(segment.kind, tuple(rows), tuple(sorted(edges)), tuple(sorted(frees)))

    def _belongs_to_forward(self, op: int, segment: RecordedSegment) -> bool:
        other, _ = self._segments[self._segment_of[op]]
        return other.kind == "fwd" and (other.microbatch, other.chunk) == (segment.microbatch, segment.chunk)

    def _recomputed(self, segment: RecordedSegment, end: int, forward: int) -> dict[int, int]:
        """Recomputed op -> the forward op it repeats: same module, name and shapes, in the same order."""
        if segment.kind not in _BACKWARD or forward < 0:
            return {}
        _, forward_end = self._segments[self._segment_of[forward]]
        waiting: dict[tuple[Value, ...], list[int]] = defaultdict(list)
        for number in range(forward_end - 1, forward - 1, -1):
            waiting[_identity(self._ops[number])].append(number)
        found = {}
        for number in range(segment.first, end):
            op = self._ops[number]
            if op.columns[PHASE] == "recompute":
                same = waiting.get(_identity(op))
                if same:
                    found[number] = same.pop()
        return found

    def _edges(self, op: RawOp, start: int, issued: dict[str, int]) -> list[tuple[int, int, str, int]]:
        """Edges into one op as (src, kind, external stream, external back), redundant ones left out.

        Streams run in order: a source outside the instance is left out when this stream follows it, or a
        later op of its stream, already; and of several on one stream only the latest stays.  DATA never
        stands in for WAIT, since it orders nothing on a GPU.
        """
        found = [(source - start, int(EdgeKind.DATA), "", 0) for source in op.data if source >= start]
        outside: dict[tuple[EdgeKind, str], int] = {}
        inside: dict[str, int] = {}
        for source in op.waits:  # ascending: the latest of a stream comes last
            stream = self._ops[source].stream
            if source > self._waited.get((op.stream, stream), -1):
                self._waited[op.stream, stream] = source
                self._followed[op.stream, stream] = max(source, self._followed.get((op.stream, stream), -1))
                if source >= start:
                    inside[stream] = source
                else:
                    outside[EdgeKind.WAIT, stream] = source
        for source in op.data:
            stream = self._ops[source].stream
            if stream != op.stream and source > self._followed.get((op.stream, stream), -1):
                self._followed[op.stream, stream] = source
                if source < start:
                    outside[EdgeKind.DATA, stream] = source
        found += [(source - start, int(EdgeKind.WAIT), "", 0) for source in sorted(inside.values())]
        for (kind, stream), source in sorted(outside.items()):
            if kind is EdgeKind.WAIT and stream in inside:
                continue
            found.append((-1, int(kind), stream, issued[stream] - 1 - self._position[source]))
        return found


def _identity(op: RawOp) -> tuple[Value, ...]:
    # Recomputation starts inside a compiled module, not at its call.
    return str(op.columns[MODULE]).partition("/fused:")[0], op.columns[NAME], op.columns[IN_SHAPES]
