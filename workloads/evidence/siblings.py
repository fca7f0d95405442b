"""How often predictions order sibling strategies as measurements do: the same model on the same machines.

Errors of siblings are correlated: what a prediction misses of a model or a machine, it misses of all its
strategies.  So the error of a *ratio* of two siblings is smaller than that of either.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from itertools import combinations, count
from operator import attrgetter

from simcore.elementary import log
from simcore.records import dataclass
from workloads.evidence.runs import MeasuredRun, measured_runs

#: Siblings predicted further apart than this ratio are no neighbours: nobody asks which is faster.
_NEIGHBOURS = 1.5


#: What makes two jobs of one model on one cluster different strategies.
_STRATEGY = attrgetter(
    "sharding", "recompute", "tp", "pp", "vpp", "cp", "ep", "dp", "micro_batch", "microbatches"
)  # fmt: skip


@dataclass(frozen=True)
class Siblings:
    """``errors``: of predicted ratios of neighbours, absolute logarithms, ascending; of ``num_groups``."""

    errors: tuple[float, ...]
    num_groups: int

    def order_is_right(self, ratio: float) -> float:
        """Probability that of two siblings the one predicted ``ratio`` >= 1 times as fast is the faster.

        An error turns the order if it is larger than the difference and has the wrong sign, as half of them.
        """
        larger = len(self.errors) - bisect_right(self.errors, log(ratio))
        return 1.0 - 0.5 * larger / len(self.errors)

    def ratio_of(self, level: float) -> float:
        """The smallest ratio, by 0.1%, from which on the order is right with probability ``level``."""
        return next(ratio for k in count() if self.order_is_right(ratio := 1.0 + k / 1000) >= level)


@cache
def siblings() -> Siblings:
    """Of the measured runs that come with the project."""
    return siblings_of(measured_runs())


def siblings_of(runs: Sequence[MeasuredRun]) -> Siblings:
    """Of ``runs``, predicted by numbers fitted without their families.

    Runs that contradict their neighbours and runs with unpublished inputs are left out.
    """
    groups: dict[tuple[object, ...], list[MeasuredRun]] = defaultdict(list)
    for run in runs:
        job = run.features
        batch = job.dp * job.micro_batch * job.microbatches
        if not run.odd and run.quality == "A" and batch:
            machine = (run.family, job.framework, job.board, job.gpus)
            groups[*machine, job.params_b, job.seq, job.precision, batch].append(run)
    errors: list[float] = []
    num_groups = 0
    for members in groups.values():
        before = len(errors)
        for one, other in combinations(members, 2):
            predicted = log(one.left_out_s / other.left_out_s)
            differ = _STRATEGY(one.features) != _STRATEGY(other.features)
            if differ and abs(predicted) <= log(_NEIGHBOURS):
                errors.append(abs(log(one.measured_s / other.measured_s) - predicted))
        num_groups += len(errors) > before
    return Siblings(tuple(sorted(errors)), num_groups)
