"""The program of one rank from those of others that show side by side in what they differ.

Note [Hollow runs]
    In which order a schedule plays its passes, what it sends between them and what waits for what does not
    depend on what a layer computes, and nine tenths of a run's time are layers.  So a rank is run long with
    layers that are a norm alone, run short in the same way, and compared with its short run as it is: the
    same passes at the same places tell which template stands for which.

    An interleaved pipeline's short run may be warm-up and nothing else, so that a pass of the steady state
    waits for another message than any pass there, or is the last to need what was sent before.  Where all
    passes of a kind wait and release alike in both models, such a pass is the whole model's, with the waits
    and releases of the hollow one.  The first microbatch is compared with the first alone: it makes buffers
    that later ones find.  Whatever is not told by the short runs is run.
"""

from __future__ import annotations

from collections.abc import Iterator

from simcore.graph.ops import OpKind
from workloads.tracing.record.recording import GROUP, KIND
from workloads.tracing.record.templates import ELSEWHERE, CutProgram, CutTemplate, Edge, FreeRow, Instance

#: Kind, model chunk, and whether it is a pass of the first microbatch: what is compared with each other.
_Place = tuple[str, int, bool]

_TRANSFERS = (OpKind.SEND, OpKind.RECV)


def exchanged(program: CutProgram, known: CutProgram, other: CutProgram) -> CutProgram | None:
    """``program`` of one rank as that of an other, whose short run gave ``other`` where the first one's gave
    ``known``.  None when the short runs do not tell: they are not alike step by step, or a template that
    they do not play is of a kind in which they differ.
    """
    if len(known.skeleton) != len(other.skeleton):
        return None
    instead: dict[str, str] = {}
    for mine, theirs in zip(known.skeleton, other.skeleton, strict=True):
        same_place = (mine.microbatch, mine.chunk) == (theirs.microbatch, theirs.chunk)
        same_kind = known.templates[mine.template].name == other.templates[theirs.template].name
        if (
            not same_place
            or not same_kind
            or instead.setdefault(mine.template, theirs.template) != theirs.template
        ):
            return None
    differ = {known.templates[mine].name for mine, theirs in instead.items() if mine != theirs}
    for digest, template in program.templates.items():
        if digest not in instead and template.name in differ:
            return None
    templates = {
        instead.get(digest, digest): other.templates[instead[digest]] if digest in instead else template
        for digest, template in program.templates.items()
    }
    skeleton = tuple(
        Instance(instead.get(one.template, one.template), one.microbatch, one.chunk)
        for one in program.skeleton
    )
    return CutProgram(templates, skeleton)


def filled(long: CutProgram, short: CutProgram, whole: CutProgram) -> CutProgram | None:
    """The program of the whole model at the length of ``long``, of the hollow one; ``short`` and ``whole``:
    of both at the same, smaller length.  None when the short runs do not tell.
    """
    known = _SideBySide.of(short, whole)
    if known is None:
        return None
    templates: dict[str, CutTemplate] = {}
    skeleton = []
    for place, template, entry in _played(long):
        found = known.instead(place, entry.template, template)
        if found is None:
            return None
        digest = found.digest()
        templates[digest] = found
        skeleton.append(Instance(digest, entry.microbatch, entry.chunk))
    return CutProgram(templates, tuple(skeleton))


class _SideBySide:
    """What stands for the templates of a hollow model."""

    def __init__(self) -> None:
        self._exact: dict[tuple[_Place, str], CutTemplate] = {}
        self._inside: dict[tuple[_Place, CutTemplate], CutTemplate] = {}
        self._apart: set[tuple[_Place, CutTemplate]] = set()
        self._differ: set[str] = set()

    @classmethod
    def of(cls, short: CutProgram, whole: CutProgram) -> _SideBySide | None:
        """From two programs that play the same; None when they do not, or one template stands for several."""
        if len(short.skeleton) != len(whole.skeleton):
            return None
        known = cls()
        for (place, hollow, mine), (other, real, theirs) in zip(_played(short), _played(whole), strict=True):
            if place != other or mine.microbatch != theirs.microbatch:
                return None
            if not known._note(place, mine.template, hollow, real):
                return None
        return known

    def _note(self, place: _Place, digest: str, hollow: CutTemplate, real: CutTemplate) -> bool:
        if self._exact.setdefault((place, digest), real) != real:
            return False
        key = place, _inside(hollow)
        if _outside(hollow) != _outside(real) or self._inside.setdefault(key, _inside(real)) != _inside(real):
            self._apart.add(key)
        if hollow != real:
            self._differ.add(place[0])
        return True

    def instead(self, place: _Place, digest: str, template: CutTemplate) -> CutTemplate | None:
        """What stands for ``template`` at ``place``, None when that is not known."""
        exact = self._exact.get((place, digest))
        if exact is not None:
            return exact
        if place[0] not in self._differ:
            return template
        key = place, _inside(template)
        inside = self._inside.get(key)
        waits, released = _outside(template)
        if inside is None or key in self._apart or any(edge[0] for edge in waits):
            return None
        rows = len(inside.rows)
        if template.name == "exchange" and rows != len(template.rows):
            return None
        frees = (*inside.frees, *((row % rows, num_bytes, -1, ELSEWHERE) for row, num_bytes in released))
        return CutTemplate(
            inside.name, inside.rows, tuple(sorted((*inside.edges, *waits))), tuple(sorted(frees))
        )


def _played(program: CutProgram) -> Iterator[tuple[_Place, CutTemplate, Instance]]:
    for entry in program.skeleton:
        template = program.templates[entry.template]
        kind = template.name
        if kind == "exchange" and any(row[GROUP] and row[KIND] not in _TRANSFERS for row in template.rows):
            kind = "exchange beside a reduction"
        first = entry.microbatch == 0 and template.name != "exchange"
        yield (kind, entry.chunk, first), template, entry


def _outside(template: CutTemplate) -> tuple[tuple[Edge, ...], tuple[tuple[int, int], ...]]:
    """Waits for what was launched before the template, and bytes from before it that it releases, by row."""
    waits = tuple(edge for edge in template.edges if edge[1] < 0)
    released = [(_released(template, free), free[1]) for free in template.frees]
    return waits, tuple(sorted((row, num_bytes) for row, num_bytes in released if row is not None))


def _inside(template: CutTemplate) -> CutTemplate:
    """The template without them."""
    edges = tuple(edge for edge in template.edges if edge[1] >= 0)
    frees = tuple(free for free in template.frees if _released(template, free) is None)
    return CutTemplate(template.name, template.rows, edges, frees)


def _released(template: CutTemplate, free: FreeRow) -> int | None:
    """The row (0: the first, -1: the last) that releases what a schedule holds on to; None for what the
    layers themselves do.  An exchange has the same rows whatever the layers, and messages may go at any.
    """
    after, _, _, scope = free
    last = len(template.rows) - 1
    if scope != ELSEWHERE or (template.name != "exchange" and after not in (0, last)):
        return None
    return -1 if after == last else after
