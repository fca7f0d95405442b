"""What a job repeats from microbatch to microbatch, and the same job with fewer of these repetitions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from simcore.distinct import distinct
from simcore.engine.launches import QUEUE_DEPTH, WINDOW
from simcore.records import dataclass

if TYPE_CHECKING:
    from simcore.graph import Graph, Program
    from simcore.graph.graph import Int32Array
    from simcore.graph.ops import IntArray

#: Repetitions that a job is begun with: two that are compared.
FEW: Final = 2
#: What is left out must be so much of the job's ops: to go on with another tape costs about a fifth of what
#: is played of it.
_LEAST_LEFT_OUT: Final = 0.2
#: Launches between what has been played and where a tape may change: the most that can be outstanding, and
#: those of a window.
_LAUNCHES_AHEAD: Final = QUEUE_DEPTH + WINDOW


@dataclass(frozen=True, slots=True)
class Repeats:
    """Instances of a program's templates: from ``first`` on, ``size`` of them come ``copies`` times, and
    ``rest`` of them once more.

    Each time they serve the next ``microbatches`` microbatches.
    """

    first: int
    size: int
    copies: int
    microbatches: int
    rest: int = 0


@dataclass(frozen=True)
class Shortened:
    """A job without ``left_out`` of the ``repeats`` (of each program) of ``whole``; it keeps ``kept_ops``."""

    whole: Graph
    graph: Graph
    repeats: tuple[Repeats, ...]
    left_out: int
    kept_ops: int

    def first_ops(self, program: int) -> IntArray:
        """The first flat op of each instance of a program of the shortened job, and the number of all."""
        sizes = np.diff(self.graph.template_start)[self.graph.programs[program].template]
        return np.concatenate([[0], np.cumsum(sizes)])

    def repeated(self, program: int) -> tuple[int, int, int]:
        """Flat ops of a program of the shortened job: the first one that comes again, how many come again
        each time, and the first one behind.
        """
        repeats, first = self.repeats[program], self.first_ops(program)
        begin = int(first[repeats.first])
        size = int(first[repeats.first + repeats.size]) - begin
        copies = repeats.copies - self.left_out
        return begin, size, int(first[repeats.first + copies * repeats.size + repeats.rest])

    def played_on(self, program: int, cut: int, column: IntArray, later: int) -> IntArray:
        """A column of the whole job's ops from that of a program of the shortened one, when the repetition
        that ends before op ``cut`` comes again, by ``later`` more each time.
        """
        _, size, _ = self.repeated(program)
        behind = cut + self.left_out * size
        found = np.empty(len(column) + self.left_out * size, dtype=np.int64)
        found[:cut] = column[:cut]
        shift = later * np.arange(1, self.left_out + 1, dtype=np.int64)[:, np.newaxis]
        np.add(column[cut - size : cut], shift, out=found[cut:behind].reshape(self.left_out, size))
        np.add(column[cut:], later * self.left_out, out=found[behind:])
        return found


@dataclass(frozen=True)
class Repeating:
    """A job whose programs have ``repeats``: all of them ``copies`` or more."""

    whole: Graph
    repeats: tuple[Repeats, ...]
    copies: int

    @classmethod
    def of(cls, graph: Graph) -> Repeating | None:
        """None where a program repeats nothing, or others repeat something else."""
        found: list[Repeats] = []
        for program in graph.programs:
            repeats = _repeats(program)
            if repeats is None or (found and found[0].microbatches != repeats.microbatches):
                return None
            found.append(repeats)
        return cls(graph, tuple(found), min((one.copies for one in found), default=0))

    def kept(self, kept: int) -> Shortened | None:
        """The job with ``kept`` repetitions, None where that leaves out too little of it."""
        left_out = self.copies - kept
        size = np.diff(self.whole.template_start)
        pairs = list(zip(self.whole.programs, self.repeats, strict=True))
        whole = sum(int(size[program.template].sum()) for program, _ in pairs)
        parts = sum(int(size[p.template[r.first : r.first + r.size]].sum()) for p, r in pairs)
        if parts * left_out < _LEAST_LEFT_OUT * whole:
            return None
        return self._without(left_out, whole - parts * left_out)

    def begun(self, kept: int) -> Shortened:
        """The job that hosts play until all but ``kept`` repetitions may be left out: the whole one where it
        has up to twice as many, since a job that does not settle soon would get all of them next.
        """
        size = np.diff(self.whole.template_start)
        pairs = zip(self.whole.programs, self.repeats, strict=True)
        parts = [int(size[p.template[r.first : r.first + r.size]].sum()) for p, r in pairs]
        more = -(-_LAUNCHES_AHEAD // max(1, min(parts)))
        left_out = self.copies - kept - more
        return self._without(left_out if 2 * left_out > self.copies else 0, 0)

    def _without(self, left_out: int, kept_ops: int) -> Shortened:
        pairs = zip(self.whole.programs, self.repeats, strict=True)
        programs = tuple(_without(program, repeats, left_out) for program, repeats in pairs)
        graph = replace(self.whole, programs=programs) if left_out else self.whole
        return Shortened(self.whole, graph, self.repeats, left_out, kept_ops)


def _repeats(program: Program) -> Repeats | None:
    """The longest repetition around the middle of a program."""
    template, chunk, microbatch = program.template, program.chunk, program.microbatch
    middle = len(template) // 2
    if not len(template):
        return None
    again = (template == template[middle]) & (chunk == chunk[middle]) & (microbatch > microbatch[middle])
    best: Repeats | None = None
    for size in (np.flatnonzero(again[middle:])).tolist():
        step = int(microbatch[middle + size] - microbatch[middle])
        same = (template[size:] == template[:-size]) & (chunk[size:] == chunk[:-size])
        same &= microbatch[size:] == np.where(
            microbatch[:-size] < 0, microbatch[:-size], microbatch[:-size] + step
        )
        differs = np.flatnonzero(~same)
        place = int(np.searchsorted(differs, middle))
        first = int(differs[place - 1]) + 1 if place else 0
        stop = int(differs[place]) if place < len(differs) else len(same)
        copies, rest = divmod(stop + size - first, size)
        if best is None or (copies - FEW) * size > (best.copies - FEW) * best.size:
            best = Repeats(first, size, copies, step, rest)
        if stop - first >= len(template) // 2:
            break
    return best if best is not None and _is_whole(program, best) else None


def _is_whole(program: Program, repeats: Repeats) -> bool:
    """Whether microbatches go through all that they go through in the repetitions, not their forward only."""
    labels = program.microbatch
    inside = labels[repeats.first : repeats.first + repeats.size]
    of_one = np.count_nonzero(inside >= 0) / repeats.microbatches
    microbatches = len(distinct(labels[labels >= 0]))
    return bool(of_one * microbatches >= 0.9 * np.count_nonzero(labels >= 0))


def _without(program: Program, repeats: Repeats, left_out: int) -> Program:
    stop = repeats.first + repeats.copies * repeats.size
    begin = stop - left_out * repeats.size

    def short(column: Int32Array) -> Int32Array:
        return np.concatenate([column[:begin], column[stop:]])

    return replace(
        program,
        template=short(program.template),
        microbatch=short(program.microbatch),
        chunk=short(program.chunk),
    )
