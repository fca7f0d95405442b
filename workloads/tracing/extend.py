"""From a few traced microbatches to many: find the period of the steady state and repeat it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from workloads.tracing.templates import CutProgram, CutTemplate, Instance

#: The steady state must be seen this many times in a row before it is believed.
MIN_REPEATS = 3


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
