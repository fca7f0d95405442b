"""What a job repeats from microbatch to microbatch, and the same job with fewer of these repetitions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from simcore.records import dataclass

if TYPE_CHECKING:
    from simcore.graph import Graph, Program
    from simcore.graph.graph import Int32Array
    from simcore.graph.ops import IntArray

#: Repetitions that a shortened job keeps: some until it has settled, two that are compared, and those that
#: are under way on other ranks or have been launched ahead.
KEPT: Final = 5
#: As many do where all settles as soon as the pipeline is full.
FEW: Final = 2
#: Playing a job twice, when it never settles, must cost less than what is saved otherwise.
_MOST_KEPT: Final = 0.55  # of the ops
#: Few are tried where the job with more would cost so much of the whole one, and half as much again.
_MOST_OF_FEW: Final = 0.33
_SAVED_BY_FEW: Final = 0.67
#: Stages of one chunk nearly always settle in few, those of several in half of all jobs
#: (docs/performance.md): few are tried there wherever more would not be.
_MOST_OF_ONE_CHUNK: Final = 0.8


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

    def origin(self, program: int, cut: int) -> tuple[IntArray, IntArray]:
        """For each op of a program of the whole job: the op of the shortened one that stands for it, and how
        many repetitions later it happens, when the repetition that ends before op ``cut`` comes again.
        """
        _, size, _ = self.repeated(program)
        op = np.arange(int(self.first_ops(program)[-1]) + self.left_out * size)
        later = np.clip((op - (cut - size)) // size, 0, self.left_out)
        return op - later * size, later


def few(graph: Graph) -> Shortened | None:
    """``graph`` with few repetitions, None where these are not far fewer than usual or still too many."""
    if shortened(graph) is None and not any(program.chunk.any() for program in graph.programs):
        return shortened(graph, FEW, most=_MOST_OF_ONE_CHUNK)
    usual, found = shortened(graph, most=1.0), shortened(graph, FEW, most=_MOST_OF_FEW)
    if found is None or (usual is not None and found.kept_ops > _SAVED_BY_FEW * usual.kept_ops):
        return None
    return found


def shortened(graph: Graph, kept: int = KEPT, *, most: float = _MOST_KEPT) -> Shortened | None:
    """``graph`` with ``kept`` repetitions, None where that is more than ``most`` of it."""
    found: list[Repeats] = []
    for program in graph.programs:
        repeats = _repeats(program)
        if repeats is None or (found and found[0].microbatches != repeats.microbatches):
            return None
        found.append(repeats)
    left_out = min((repeats.copies for repeats in found), default=0) - kept
    if left_out < 1:
        return None
    size = np.diff(graph.template_start)
    pairs = list(zip(graph.programs, found, strict=True))
    whole = sum(int(size[program.template].sum()) for program, _ in pairs)
    parts = sum(int(size[p.template[r.first : r.first + r.size]].sum()) for p, r in pairs)
    if parts * left_out < (1.0 - most) * whole:
        return None
    programs = tuple(_without(program, repeats, left_out) for program, repeats in pairs)
    kept_ops = whole - parts * left_out
    return Shortened(graph, replace(graph, programs=programs), tuple(found), left_out, kept_ops)


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
        if best is None or (copies - KEPT) * size > (best.copies - KEPT) * best.size:
            best = Repeats(first, size, copies, step, rest)
        if stop - first >= len(template) // 2:
            break
    return best if best is not None and _is_whole(program, best) else None


def _is_whole(program: Program, repeats: Repeats) -> bool:
    """Whether microbatches go through all that they go through in the repetitions, not their forward only."""
    labels = program.microbatch
    inside = labels[repeats.first : repeats.first + repeats.size]
    of_one = np.count_nonzero(inside >= 0) / repeats.microbatches
    distinct = len(np.unique(labels[labels >= 0]))
    return bool(of_one * distinct >= 0.9 * np.count_nonzero(labels >= 0))


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
