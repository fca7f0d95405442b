"""A rank's step as passes: what it computes for which microbatch, what it moves, what it waited for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from simcore.analysis.intervals import IntArray
from simcore.analysis.waterfall import communication_by_axis
from simcore.graph.kinds import COMMUNICATION_KINDS, COMPUTE_KINDS, P2P_KINDS
from simcore.records import dataclass
from simcore.timeline.reader import RankRows

BoolArray = npt.NDArray[np.bool_]

COLUMNS: Final = (
    "stage", "name", "kind", "phase", "group", "peer", "microbatch", "layer", "ready_ps", "start_ps",
    "end_ps",
)  # fmt: skip
HOST: Final = "the host, or what it launches late"
#: Of a step: a longer pause parts what is computed in one pass.
_PAUSE: Final = 200
_NO_LAYER: Final = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Spans:
    """Stretches of one lane, in order of their start: no other op begins between two of one stretch.

    ``kind`` indexes ``kinds``: phases of the compute lane, else axes with the phase ("tensor fwd").
    ``first_layer`` and ``last_layer`` are the lowest and highest of its ops (-1: none), ``num_ops`` their
    number, ``busy_ps`` the time that they cover.
    """

    kinds: tuple[str, ...]
    kind: IntArray
    start: IntArray
    end: IntArray
    microbatch: IntArray
    chunk: IntArray
    first_layer: IntArray
    last_layer: IntArray
    num_ops: IntArray
    busy_ps: IntArray

    def __len__(self) -> int:
        return len(self.start)

    def joined(self, closer_ps: int) -> Spans:
        """Stretches at most ``closer_ps`` apart as one, which has no microbatch (-1) where theirs differ."""
        if len(self) < 2:
            return self
        reach = np.maximum.accumulate(self.end)
        opens = np.concatenate([[True], self.start[1:] - reach[:-1] > closer_ps])
        first = np.flatnonzero(opens)
        lowest = np.where(self.first_layer >= 0, self.first_layer, _NO_LAYER)
        least = np.minimum.reduceat(lowest, first)
        both = np.minimum.reduceat(self.microbatch, first), np.maximum.reduceat(self.microbatch, first)
        return Spans(
            self.kinds,
            self.kind[first],
            self.start[first],
            np.maximum.reduceat(self.end, first),
            np.where(both[0] == both[1], both[0], -1),
            self.chunk[first],
            np.where(least < _NO_LAYER, least, -1),
            np.maximum.reduceat(self.last_layer, first),
            np.add.reduceat(self.num_ops, first),
            np.add.reduceat(self.busy_ps, first),
        )


@dataclass(frozen=True)
class RankPasses:
    """``compute``: passes on the GPU; ``lanes``: communication by axis.

    Of each pass: ``gap_ps``, in which the GPU computed nothing before it; ``waited_for``, an index into
    ``reasons`` (-1: nothing); ``peer_ps``: what of the gap its message or collective waited for others.
    """

    rank: int
    stage: int
    num_ranks: int
    compute: Spans
    lanes: dict[str, Spans]
    gap_ps: IntArray
    waited_for: IntArray
    peer_ps: IntArray
    reasons: tuple[str, ...]


def rank_passes(rows: RankRows, step_ps: int, *, together: bool = False) -> RankPasses:
    """The passes of a rank's rows (:data:`COLUMNS`); one that pauses for long, of the step, is two.

    ``together``: a backward pass and what is recomputed for it are one.
    """
    lasts = rows.ints("end_ps") > rows.ints("start_ps")
    compute = rows.are("kind", COMPUTE_KINDS) & lasts
    communication = rows.are("kind", COMMUNICATION_KINDS) & lasts
    layer = rows.ints("layer")
    chunk = _chunk_of(layer)
    phases, phase_names = rows.strings("phase")
    if together:
        names = ["bwd" if name == "recompute" else name for name in phase_names]
        phase_names = list(dict.fromkeys(names))
        phases = np.array([phase_names.index(name) for name in names], dtype=np.int32)[phases]
    passes = _stretches(rows, np.flatnonzero(compute), phases, phase_names, chunk, step_ps // _PAUSE)
    gap, waited_for, peer, reasons = _waits(rows, passes, np.flatnonzero(communication))
    lanes: dict[str, Spans] = {}
    for axis, chosen in _axes(rows, communication).items():
        lanes[axis] = _stretches(rows, chosen, phases, phase_names, chunk, 0)
    stage = int(rows.ints("stage")[0]) if len(lasts) else 0
    return RankPasses(rows.rank, stage, rows.num_ranks, passes, lanes, gap, waited_for, peer, reasons)


def _axes(rows: RankRows, communication: BoolArray) -> dict[str, IntArray]:
    places = np.flatnonzero(communication)
    names, axis = communication_by_axis(rows, places)
    return {name: places[axis == number] for number, name in enumerate(names)}


def _chunk_of(layer: IntArray) -> IntArray:
    """Which of the rank's runs of successive layers each op belongs to; -1: to none."""
    count = int(layer.max(initial=-1)) + 1
    is_there = np.zeros(count + 1, dtype=np.bool_)  # the last one stands for none
    is_there[layer] = True
    begins = is_there[:count] & ~np.concatenate([[False], is_there[:count]])[:count]
    number = np.append(np.cumsum(begins) - 1, -1)
    return number[layer]


def _stretches(
    rows: RankRows,
    chosen: IntArray,
    phases: npt.NDArray[np.int32],
    names: Sequence[str],
    chunk: IntArray,
    pause_ps: int,
) -> Spans:
    """Successive ops of one phase, microbatch and chunk as one, if no pause is between them; if none is
    allowed, those that touch, whatever they are for.
    """
    start, end = rows.ints("start_ps")[chosen], rows.ints("end_ps")[chosen]
    if (start[1:] <= start[:-1]).any():
        order = np.lexsort((end, start))
        chosen, start, end = chosen[order], start[order], end[order]
    kind, microbatch = phases[chosen].astype(np.int64), rows.ints("microbatch")[chosen]
    part = _filled(chunk[chosen], kind, microbatch)
    if not len(chosen):
        nothing = np.zeros(0, dtype=np.int64)
        return Spans(tuple(names), *([nothing] * 9))
    reach = np.maximum.accumulate(end)
    opens = np.ones(len(chosen), dtype=np.bool_)
    opens[1:] = (kind[1:] != kind[:-1]) | (microbatch[1:] != microbatch[:-1]) | (part[1:] != part[:-1])
    apart = start[1:] - reach[:-1]
    opens[1:] = (opens[1:] | (apart > pause_ps)) if pause_ps else apart > 0
    first = np.flatnonzero(opens)
    layer = rows.ints("layer")[chosen]
    lowest = np.where(layer >= 0, layer, _NO_LAYER)
    covered = np.maximum(0, end - np.maximum(start, np.concatenate([[0], reach[:-1]])))
    least = np.minimum.reduceat(lowest, first)
    return Spans(
        tuple(names),
        kind[first],
        start[first],
        np.maximum.reduceat(end, first),
        microbatch[first],
        part[first],
        np.where(least < _NO_LAYER, least, -1),
        np.maximum.reduceat(layer, first),
        np.diff(np.append(first, len(chosen))),
        np.add.reduceat(covered, first),
    )


def _filled(part: IntArray, kind: IntArray, microbatch: IntArray) -> IntArray:
    """``part``, and that of the nearest op of the same pass where an op has none (embedding, norms)."""
    found, missing = part.copy(), np.flatnonzero(part < 0)
    for behind in (0, 1):  # from those before, then from those behind
        known = np.flatnonzero(found >= 0)
        if not len(missing) or not len(known):
            break
        at = np.searchsorted(known, missing) - 1 + behind
        near = known[np.clip(at, 0, len(known) - 1)]
        same = (at >= 0) & (at < len(known))
        same &= (kind[near] == kind[missing]) & (microbatch[near] == microbatch[missing])
        found[missing[same]] = found[near[same]]
        missing = missing[~same]
    return found


def _waits(
    rows: RankRows, passes: Spans, communication: IntArray
) -> tuple[IntArray, IntArray, IntArray, tuple[str, ...]]:
    """Of each pass the gap before it, and the communication that ended last in it."""
    begins = passes.start
    ended = np.concatenate([[0], np.maximum.accumulate(passes.end)[:-1]]) if len(passes) else begins
    gap = np.maximum(0, begins - ended)
    end = rows.ints("end_ps")[communication]
    order = np.argsort(end, kind="stable")
    communication, end = communication[order], end[order]
    waited_for = np.full(len(passes), -1, dtype=np.int64)
    peer_ps = np.zeros(len(passes), dtype=np.int64)
    reasons: dict[str, int] = {}
    names, groups, kinds = (rows.strings(column) for column in ("name", "group", "kind"))
    peer, ready, start = (rows.ints(column) for column in ("peer", "ready_ps", "start_ps"))
    latest = np.searchsorted(end, begins, side="right") - 1
    for at in np.flatnonzero(gap > 0).tolist():
        reason = HOST
        if latest[at] >= 0 and end[latest[at]] > ended[at]:
            op = int(communication[latest[at]])
            name, group, kind = (values[codes[op]] for codes, values in (names, groups, kinds))
            of = f" from rank {peer[op]}" if kind in P2P_KINDS and kind == "recv" else ""
            of = f" to rank {peer[op]}" if kind == "send" else of
            reason = f"{name}{of}" + (f" of {group}" if not of and group else "")
            peer_ps[at] = max(0, int(start[op]) - max(int(ready[op]), int(ended[at])))
        waited_for[at] = reasons.setdefault(reason, len(reasons))
    return gap, waited_for, peer_ps, tuple(reasons)
