"""Long interleaved pipelines, continued in a straight line from two shorter ones.

Once a pipeline is full, each further group of microbatches adds the same time, that of the slowest stage.
Steps that repeat themselves to the picosecond the engine says exactly and fast, however long; interleaved
ones repeat within rounding only.  Of the long ones two are simulated, both long enough to fill the pipeline.
What the second takes longer must be what lies between two groups of microbatches on its last stage, the last
to drain: where it is not (the host lags behind, say), the whole step is simulated.  A test holds the line
within 0.1% of the whole.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from workloads.parallel.spec import ParallelSpec

#: Of as many groups of microbatches the whole step costs no more than the shorter ones together.
_WHOLE: Final = 5

#: How far the two times of a group may differ, relative.
_STRAIGHT: Final = 1e-3


def shorter_counts(parallel: ParallelSpec, count: int) -> tuple[int, int] | None:
    """Two numbers of microbatches that may stand for ``count``; None where the whole step is simulated."""
    if parallel.virtual_stages == 1 or not parallel.pipeline.loops:
        return None
    group = parallel.microbatch_group or parallel.pp
    return (2 * group, 3 * group) if count > _WHOLE * group else None


def between_groups(microbatch: npt.NDArray[np.integer], end: npt.NDArray[np.integer], group: int) -> int:
    """Time between the ends of the first and the second group of microbatches on one rank.

    ``microbatch`` and ``end`` of its ops, in any order; ops of no microbatch have -1.
    """
    first = end[(microbatch >= 0) & (microbatch < group)].max()
    second = end[(microbatch >= group) & (microbatch < 2 * group)].max()
    return int(second - first)


def continued(
    counts: tuple[int, int], steps: tuple[float, float], between: float, count: int
) -> float | None:
    """Step time at ``count`` microbatches on the line through ``steps`` at ``counts``; None where it bends.

    ``between``: time between two groups on the last stage of the longer step, in the unit of ``steps``.
    """
    more = steps[1] - steps[0]
    if abs(more - between) > _STRAIGHT * abs(more):
        return None
    return steps[1] + (count - counts[1]) / (counts[1] - counts[0]) * more
