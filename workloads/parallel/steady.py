"""Long interleaved pipelines, continued in a straight line from two shorter ones.

Once a pipeline is full, each further group of microbatches adds the same time, that of the slowest stage.
Steps that repeat themselves to the picosecond the engine says exactly and fast, however long; interleaved
ones repeat within rounding only.  Of the long ones three are simulated, all long enough to fill the pipeline:
where they lie on a straight line, so do longer steps, else the whole step is simulated.  A test holds the
line within 0.1% of the whole step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from workloads.parallel.spec import ParallelSpec

#: Of as many groups of microbatches the whole step costs no more than the shorter ones together.
_WHOLE: Final = 9

#: How far slopes may differ, relative, where three steps count as lying on a line.
_STRAIGHT: Final = 1e-3


def shorter_counts(parallel: ParallelSpec, count: int) -> tuple[int, int, int] | None:
    """Three numbers of microbatches that may stand for ``count``; None where the whole step is simulated."""
    if parallel.virtual_stages == 1 or parallel.placement != "loop":
        return None
    group = parallel.microbatch_group or parallel.pp
    return (2 * group, 3 * group, 4 * group) if count > _WHOLE * group else None


def continued(counts: tuple[int, int, int], values: Sequence[float], count: int) -> float | None:
    """The value at ``count`` microbatches on the line through those at ``counts``; None where it is bent."""
    before, after = ((values[k + 1] - values[k]) / (counts[k + 1] - counts[k]) for k in (0, 1))
    if abs(after - before) > _STRAIGHT * abs(after):
        return None
    return values[2] + (count - counts[2]) * after
