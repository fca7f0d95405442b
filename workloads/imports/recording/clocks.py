"""The clocks of several recorded ranks on one time line: calls of one communicator end together."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from simcore.collectives.kinds import SEND_RECV
from simcore.graph.ops import IntArray
from simcore.records import dataclass
from simcore.units import PS_PER_US
from workloads.imports.recording.communicators import RecordedCommunicator, spread
from workloads.imports.recording.rank_ops import RankOps

_EVEN_PS = 100 * PS_PER_US  # by how much ends of one communicator's calls differ from rank to rank
_FEW = 3  # calls that may end evenly by chance
_DRIFTS = 9  # calls that show whether a clock runs faster than another
_VISIBLE_PS = 20 * PS_PER_US  # drift over a recording: less is the calls' own unevenness
_MOST_DRIFT = 500e-6  # quartz clocks differ by less


@dataclass(frozen=True)
class RecordedClock:
    """``time + shift_ps + drift * (time - since_ps)`` is a rank's time on the clock of the first."""

    shift_ps: int
    drift: float = 0.0
    since_ps: int = 0

    def common(self, time_ps: int) -> int:
        """A time of the rank on the common clock, ps."""
        return time_ps + self.shift_ps + round(self.drift * (time_ps - self.since_ps))


@dataclass(frozen=True, order=True)
class _ClockDifference:
    """How much later rank ``one``'s clock shows the same moments than ``other``'s; best ones first."""

    uneven: bool
    few: bool
    rough: bool
    spread_ps: float
    one: int
    other: int
    shift_ps: int
    drift: float
    since_ps: int


def aligned(
    ranks: list[RankOps], base_ps: list[int], found: list[RecordedCommunicator]
) -> list[RecordedClock]:
    """Every rank's clock, so that calls end together.

    From rank to rank by the differences of their calls' ends, those pairs first that differ most evenly;
    ``base_ps``, what the traces tell, for ranks that share no call with others.
    """
    differences = sorted(_differences(ranks, found))
    clocks = [RecordedClock(shift) for shift in base_ps]
    done: set[int] = set()
    for root in range(len(ranks)):
        if root in done:
            continue
        done.add(root)
        while True:
            step = next((d for d in differences if (d.one in done) != (d.other in done)), None)
            if step is None:
                break
            if step.one in done:
                clocks[step.other] = _behind(clocks[step.one], step.shift_ps, step.drift, step.since_ps)
            else:
                since = step.since_ps + step.shift_ps
                clocks[step.one] = _behind(clocks[step.other], -step.shift_ps, -step.drift, since)
            done |= {step.one, step.other}
    return clocks


def _behind(known: RecordedClock, shift_ps: int, drift: float, since_ps: int) -> RecordedClock:
    """The clock of a rank whose times differ from those of a rank with a known clock."""
    on_known = since_ps + shift_ps
    return RecordedClock(known.common(on_known) - since_ps, known.drift + drift, since_ps)


def _differences(ranks: list[RankOps], found: list[RecordedCommunicator]) -> list[_ClockDifference]:
    differences = []
    for communicator in found:
        # Ends of a sender and its receiver differ a little more than those of a collective.
        rough = any(kind == SEND_RECV.name for kind, _ in communicator.what)
        ends: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        for (first, op), *others in communicator.calls:
            for index, other in others:
                end = int(ranks[index].end_ps[other])
                ends[first, index].append((end, int(ranks[first].end_ps[op]) - end))
        for (one, other), values in ends.items():
            when, later = np.array(values, dtype=np.int64).T
            drift, since = _drift(when, later)
            level = later - drift * (when - since)
            uneven = spread(level)
            differences.append(
                _ClockDifference(
                    uneven > _EVEN_PS, len(values) < _FEW, rough, uneven, one, other, int(np.median(level)),
                    drift, since,
                )
            )  # fmt: skip
    return differences


def _drift(when: IntArray, later: IntArray) -> tuple[float, int]:
    """How fast a difference of clocks grows, and around when, ps; 0 where it does not show."""
    since = int(np.median(when))
    third = len(when) // 3
    if len(when) < _DRIFTS:
        return 0.0, since
    order = np.argsort(when, kind="stable")
    begin, end = order[:third], order[-third:]
    between = float(np.median(when[end]) - np.median(when[begin]))
    grown = float(np.median(later[end]) - np.median(later[begin]))
    if between <= 0 or abs(grown) < _VISIBLE_PS or abs(grown) > _MOST_DRIFT * between:
        return 0.0, since
    # Unevenness that is no drift is as large within the thirds as between them.
    within = max(spread(later[begin]), spread(later[end]))
    return (grown / between, since) if abs(grown) > within else (0.0, since)
