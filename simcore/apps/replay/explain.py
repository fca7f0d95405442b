"""Which ops, streams and waits make a replayed step longer or shorter than the recorded one.

The replayed span is taken apart along its critical path (:mod:`.path`): each op's work on it
and the wait before.  The recorded times of the same chain of ops do the same to the recorded span.  So the
differences of the parts add up to the difference of the spans, with one entry for what the recording did
after the chain's last op.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import field

from simcore.apps.replay.path import PathSegment
from simcore.graph.ops import IntArray
from simcore.records import dataclass
from workloads.imports.recorded import ImportedRank

#: The entry of ops that ended later in the recording than the one that ends the replayed step.
AFTER = "(other ops that ended the recorded step)"


@dataclass
class Contribution:
    """Ops of one name on one stream, ``calls`` of them on the path; ps, (recorded, replayed)."""

    name: str
    stream: str
    calls: int = 0
    work_ps: list[int] = field(default_factory=lambda: [0, 0])
    wait_ps: list[int] = field(default_factory=lambda: [0, 0])

    @property
    def work_difference_ps(self) -> int:
        """How much longer the ops work in the replay."""
        return self.work_ps[1] - self.work_ps[0]

    @property
    def wait_difference_ps(self) -> int:
        """How much longer the path waits for them to start in the replay."""
        return self.wait_ps[1] - self.wait_ps[0]

    @property
    def difference_ps(self) -> int:
        """Both."""
        return self.work_difference_ps + self.wait_difference_ps


def explain(rank: ImportedRank, members: IntArray, path: list[PathSegment]) -> list[Contribution]:
    """Contributions to replayed minus recorded span of a step, the largest first, none of them 0.

    ``members`` are the step's ops, ``path`` is its critical path in the replay.
    """
    recorded = rank.recorded
    found: dict[tuple[str, str], Contribution] = {}
    time = int(recorded.start_ps[members].min())
    for segment in path:
        op = segment.op
        key = recorded.name[op], recorded.stream[op]
        entry = found.setdefault(key, Contribution(*key))
        entry.calls += 1
        start = max(time, int(recorded.start_ps[op])) if segment is path[0] else int(recorded.start_ps[op])
        end = int(recorded.end_ps[op])
        entry.work_ps[0] += end - start
        entry.wait_ps[0] += start - time
        entry.work_ps[1] += segment.work_ps
        entry.wait_ps[1] += segment.wait_ps
        time = end
    after = int(recorded.end_ps[members].max()) - time
    found[AFTER, ""] = Contribution(AFTER, "", 0, [0, 0], [after, 0])
    changed = [entry for entry in found.values() if entry.work_difference_ps or entry.wait_difference_ps]
    return sorted(
        changed, key=lambda c: (-abs(c.difference_ps), -abs(c.work_difference_ps), c.name, c.stream)
    )


def by_stream(contributions: list[Contribution]) -> dict[str, tuple[int, int]]:
    """Differences by stream, ps: (work, wait)."""
    totals: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for entry in contributions:
        totals[entry.stream][0] += entry.work_difference_ps
        totals[entry.stream][1] += entry.wait_difference_ps
    return {stream: (work, wait) for stream, (work, wait) in sorted(totals.items())}
