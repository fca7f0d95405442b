"""What the cases of a sweep cost: by prices of GPUs' hours that the spec or ``--prices`` names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from simcore.apps.prices import read_prices
from simcore.apps.run.outcome import Outcome
from simcore.apps.sweep.spec import SweepSpec
from simcore.apps.sweep.sweeping import Swept, SweptCase
from simcore.errors import InputError
from simcore.hardware import ClusterSpec
from simcore.records import dataclass

_S_PER_HOUR: Final = 3600.0


@dataclass(frozen=True)
class Rate:
    """What a GPU of a case costs an hour, in ``currency``."""

    currency: str
    gpu_hour: float

    def step(self, outcome: Outcome) -> float | None:
        """A step on all GPUs of the job; None where there is none."""
        if outcome.step_time_s is None or outcome.gpus is None:
            return None
        return outcome.gpus * self.gpu_hour / _S_PER_HOUR * outcome.step_time_s

    def million_tokens(self, outcome: Outcome) -> float | None:
        """A million tokens; None for a job without tokens."""
        if not outcome.tokens_per_s or outcome.gpus is None:
            return None
        return 1e6 * outcome.gpus * self.gpu_hour / _S_PER_HOUR / outcome.tokens_per_s

    def as_object(self, outcome: Outcome) -> dict[str, Any]:
        """Columns of a row."""
        return {
            "currency": self.currency,
            "cost_per_step": self.step(outcome),
            "cost_per_million_tokens": self.million_tokens(outcome),
        }


Rates = Mapping[int, Rate]


def rates(spec: SweepSpec, found: Swept, everywhere: str | None) -> dict[int, Rate]:
    """Rates of cases by number; none where no prices are named.  ``everywhere``: those of ``--prices``.

    Errors: InputError for prices that cannot be read, that lack a GPU, or that are named twice.
    """
    if everywhere is not None and spec.names_prices:
        raise InputError(f"{spec.path}: it says prices itself: leave out --prices {everywhere}")
    by_list: dict[str, list[tuple[SweptCase, ClusterSpec]]] = {}
    for case in found.cases:
        name = everywhere or spec.prices(case.said)
        if name is not None and case.cluster is not None:
            by_list.setdefault(name, []).append((case, case.cluster))
    out: dict[int, Rate] = {}
    for name, priced in by_list.items():
        clusters = {cluster.name: cluster for _, cluster in priced}
        prices = read_prices(name, clusters.values())
        out |= {case.number: Rate(prices.currency, prices.gpu_hour(cluster)) for case, cluster in priced}
    return out


def cheapest(found: Swept, priced: Rates) -> SweptCase | None:
    """The case whose tokens cost least; None where none has a cost, or not all the same currency."""
    costs = {
        case.number: cost
        for case in found.cases
        if found.status(case) == "done"
        and case.number in priced
        and (cost := priced[case.number].million_tokens(found.outcomes[case.number])) is not None
    }
    if len({priced[number].currency for number in costs}) != 1:
        return None
    numbered = {case.number: case for case in found.cases}
    return numbered[min(costs, key=lambda number: (costs[number], number))]
