"""What a recorded step took longer than the expected one, by cause; the causes add up to the difference.

Note [Moments]
    A moment of a step belongs to the kernel that runs in it, else to the communication that moves data in
    it, else to a copy, else to what is waited for: others in a communication, or the host.  The recorded and
    the simulated step of the same rank are taken apart by the same rule, and their parts subtracted.  Of a
    recorded communication kernel it is not known how long it waited: the shortest of its kind and size tells
    what it takes, the rest of the others is waiting.  Two parts are divided further.  Products and attention
    that are both slower are so, as far as they are alike in it, by the clock.  Communication that is exposed
    longer is so because it takes longer, at the expected share of overlap, and for the rest because less of
    it overlaps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

import numpy as np
import numpy.typing as npt

from simcore.analysis.intervals import IntArray, Intervals
from simcore.analysis.waterfall import claimed
from simcore.apps.replay.categories import CATEGORIES, MEMCPY, MEMSET, categories, category
from simcore.errors import InputError
from simcore.graph.kinds import COMMUNICATION_KINDS, COMPUTE_KINDS
from simcore.records import dataclass
from simcore.timeline import Timeline
from simcore.units import PS_PER_S, format_time
from workloads.imports.recorded import ImportedRank, RecordedOps

PRODUCTS, ATTENTION, OPTIMIZER, KERNELS, COPIES = "products", "attention", "optimizer", "kernels", "copies"
MOVING, WAITING, HOST = "communication", "waiting", "host"
PARTS = (PRODUCTS, ATTENTION, KERNELS, OPTIMIZER, COPIES, MOVING, WAITING, HOST)
_OF_CATEGORY = {
    "gemm/conv": PRODUCTS,
    "attention": ATTENTION,
    "optimizer": OPTIMIZER,
    MEMCPY: COPIES,
    MEMSET: COPIES,
}
_COLUMNS = ("name", "kind", "ready_ps", "start_ps", "end_ps")

BoolArray = npt.NDArray[np.bool_]


@dataclass
class Moments:
    """A step of one rank taken apart: seconds by part (:data:`PARTS`), which add up to ``step_s``.

    ``moved_s``: communication that moves data, exposed or not; ``launches``: kernels by part.
    """

    step_s: float = 0.0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    moved_s: float = 0.0
    launches: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))

    def add(self, other: Moments, weight: float) -> None:
        """``weight`` times another's."""
        self.step_s += weight * other.step_s
        self.moved_s += weight * other.moved_s
        for part in PARTS:
            self.seconds[part] += weight * other.seconds[part]
            self.launches[part] += weight * other.launches[part]


@dataclass(frozen=True)
class Cause:
    """``extra_s``: how much longer a step is for it (negative: shorter); ``seen`` says what was recorded."""

    name: str
    extra_s: float
    seen: str


def recorded_ranks(ranks: Sequence[ImportedRank], number: int | None = None) -> tuple[Moments, int]:
    """The mean of the recorded steps (or of those with a ``number``) of all ranks, and how many there are.

    InputError where none is recorded.
    """
    found = Moments()
    shortest = _shortest(rank.recorded for rank in ranks)
    steps = [(rank, *one) for rank in ranks for one in _periods(rank, number)]
    if not steps:
        known = sorted({step.number for rank in ranks for step in rank.steps})
        raise InputError(
            f"no step {'' if number is None else number} with GPU operations; steps: {known[:12]}"
        )
    for rank, begin, end, members in steps:
        found.add(_recorded_step(rank, begin, end, members, shortest), 1 / len(steps))
    return found, len(steps) // len(ranks)


def expected_moments(timeline: Timeline, ranks: Iterable[int]) -> Moments:
    """The mean of the simulated step on ``ranks``."""
    found, numbers = Moments(), list(ranks)
    for rank in numbers:
        rows = timeline.rank_rows(rank, _COLUMNS)
        kinds, kind_names = rows.strings("kind")
        names, name_values = rows.strings("name")
        start, end, ready = (rows.ints(column) for column in ("start_ps", "end_ps", "ready_ps"))
        compute, communication = (
            np.isin(kinds, [code for code, name in enumerate(kind_names) if name in wanted])
            for wanted in (COMPUTE_KINDS, COMMUNICATION_KINDS)
        )
        part = np.array([PARTS.index(_part(category(name))) for name in name_values], dtype=np.int64)[names]
        copies = np.array([name.lower().startswith("mem") for name in kind_names], dtype=np.bool_)[kinds]
        waits = Intervals.union(ready[communication], start[communication])
        one = _taken_apart(
            timeline.info.step_ps, start, end, part,
            compute & ~copies, communication, copies, np.zeros(int(communication.sum())),
        )  # fmt: skip
        busy = Intervals.union(start[compute | communication | copies], end[compute | communication | copies])
        waited = waits.overlap(busy.rest_of(timeline.info.step_ps)) / PS_PER_S
        one.seconds[WAITING] += waited
        one.seconds[HOST] -= waited
        found.add(one, 1 / len(numbers))
    return found


def causes(recorded: Moments, expected: Moments) -> list[Cause]:
    """What the recorded step takes longer, the largest first; the sum is the difference of the steps."""
    extra = {part: recorded.seconds[part] - expected.seconds[part] for part in PARTS}
    found = [*_of_clock(recorded, expected, extra), *_of_communication(recorded, expected, extra)]
    for part, what in (
        (KERNELS, "kernels that memory bounds"), (OPTIMIZER, "the optimizer's kernels"), (COPIES, "copies"),
    ):  # fmt: skip
        counts = (recorded.launches[part], expected.launches[part])
        seen = f"{_both(recorded, expected, part)} in {counts[0]:,.0f} launches, {counts[1]:,.0f} expected"
        found.append(Cause(what, extra[part], seen))
    found.append(Cause("waiting for other ranks", extra[WAITING], _both(recorded, expected, WAITING)))
    found.append(Cause("no work for the GPU", extra[HOST], _both(recorded, expected, HOST)))
    return sorted(found, key=lambda cause: -cause.extra_s)


def _both(recorded: Moments, expected: Moments, part: str) -> str:
    return f"{_time(recorded.seconds[part])}, expected {_time(expected.seconds[part])}"


def _time(seconds: float) -> str:
    return format_time(seconds * PS_PER_S)


def _of_clock(recorded: Moments, expected: Moments, extra: Mapping[str, float]) -> list[Cause]:
    """What products and attention have in common, and what is left of each."""
    both = [
        part for part in (PRODUCTS, ATTENTION) if expected.seconds[part] > 0 and recorded.seconds[part] > 0
    ]
    slower = [recorded.seconds[part] / expected.seconds[part] - 1 for part in both]
    common = max(0.0, min(slower)) if len(both) > 1 else 0.0
    found = []
    if common:
        seen = f"products and attention are both {common:.0%} slower or more"
        found.append(Cause("the clock", common * sum(expected.seconds[part] for part in both), seen))
    for part in (PRODUCTS, ATTENTION):
        rest = extra[part] - common * expected.seconds[part]
        what = "matrix products" if part == PRODUCTS else part
        found.append(Cause(f"{what} beyond it" if common else what, rest, _both(recorded, expected, part)))
    return found


def _of_communication(recorded: Moments, expected: Moments, extra: Mapping[str, float]) -> list[Cause]:
    """Longer communication, and less overlap."""
    exposed = expected.seconds[MOVING] / expected.moved_s if expected.moved_s else 1.0
    longer = exposed * (recorded.moved_s - expected.moved_s)
    share = recorded.seconds[MOVING] / recorded.moved_s if recorded.moved_s else 0.0
    moved = f"{_time(recorded.moved_s)} of communication, expected {_time(expected.moved_s)}"
    overlap = f"{share:.0%} of communication is exposed, expected {exposed if expected.moved_s else 0.0:.0%}"
    return [
        Cause("communication takes longer", longer, moved),
        Cause("less communication overlaps", extra[MOVING] - longer, overlap),
    ]


def _part(kind: str) -> str:
    return _OF_CATEGORY.get(kind, KERNELS)


def _periods(rank: ImportedRank, number: int | None) -> list[tuple[int, int, IntArray]]:
    """Begin, end and ops of each step: it ends where the next begins, the last with its last op."""
    both = [(step.number, ops) for step, ops in zip(rank.steps, rank.step_ops, strict=True) if len(ops)]
    begins = [int(rank.recorded.start_ps[ops].min()) for _, ops in both]
    ends = [*begins[1:], int(rank.recorded.end_ps[both[-1][1]].max())] if both else []
    return [
        (begin, end, ops)
        for begin, end, (name, ops) in zip(begins, ends, both, strict=True)
        if end > begin and number in (None, name)
    ]


_Key = tuple[str, int]


def _keys(ops: RecordedOps) -> list[_Key | None]:
    """Of each communication: its name and size; None where the size is not recorded."""
    if ops.collectives is None:
        return [None] * int(ops.is_comm.sum())
    sizes = ops.collectives.num_bytes[ops.is_comm].tolist()
    names = [(*ops.name.values, "")[code] for code in ops.name.codes[ops.is_comm].tolist()]
    return [(name, size) if size > 0 else None for name, size in zip(names, sizes, strict=True)]


def _shortest(recordings: Iterable[RecordedOps]) -> dict[_Key, int]:
    """The shortest communication of each kind and size, ps."""
    found: dict[_Key, int] = {}
    for ops in recordings:
        lengths = (ops.end_ps - ops.start_ps)[ops.is_comm].tolist()
        for key, length in zip(_keys(ops), lengths, strict=True):
            if key is not None:
                found[key] = min(found.get(key, length), length)
    return found


def _recorded_step(
    rank: ImportedRank, begin: int, end: int, members: IntArray, shortest: Mapping[_Key, int]
) -> Moments:
    ops = rank.recorded
    waiting = np.zeros(len(ops))
    lengths = (ops.end_ps - ops.start_ps)[ops.is_comm]
    waiting[ops.is_comm] = [
        1 - shortest[key] / length if key is not None and length > 0 else 0.0
        for key, length in zip(_keys(ops), lengths.tolist(), strict=True)
    ]
    part = np.array([PARTS.index(_part(name)) for name in CATEGORIES], dtype=np.int64)[categories(ops)]
    start, stop = (np.clip(times[members], begin, end) - begin for times in (ops.start_ps, ops.end_ps))
    communication = np.asarray(ops.is_comm[members])
    copies = np.asarray(~ops.is_kernel[members]) & ~communication
    return _taken_apart(
        end - begin, start, stop, part[members],
        ~communication & ~copies, communication, copies, waiting[members][communication],
    )  # fmt: skip


def _taken_apart(
    step_ps: int, start: IntArray, end: IntArray, part: IntArray,
    compute: BoolArray, communication: BoolArray, copies: BoolArray, waiting: npt.NDArray[np.float64],
) -> Moments:  # fmt: skip
    """See Note [Moments]; ``waiting``: which share of each communication waits."""
    found: dict[str, float] = defaultdict(float)
    theirs = claimed(start[compute], end[compute])
    for number, name in enumerate(PARTS):
        found[name] += float(theirs[part[compute] == number].sum())
    computing = Intervals.union(start[compute], end[compute])
    exposed = claimed(start[communication], end[communication], computing)
    found[WAITING] += float((exposed * waiting).sum())
    found[MOVING] += float((exposed * (1 - waiting)).sum())
    busy = computing.joined(Intervals.union(start[communication], end[communication]))
    found[COPIES] += float(claimed(start[copies], end[copies], busy).sum())
    found[HOST] = step_ps - sum(found.values())
    moved = float(((end - start)[communication] * (1 - waiting)).sum())
    launches = {name: float((part[compute] == number).sum()) for number, name in enumerate(PARTS)}
    launches[COPIES] = float(copies.sum())
    seconds = {name: found[name] / PS_PER_S for name in PARTS}
    return Moments(step_ps / PS_PER_S, seconds, moved / PS_PER_S, launches)
