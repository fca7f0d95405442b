"""Several clusters: the best strategy on each, what more or other GPUs bring, and which is best for what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from simcore.apps.amounts import Amount
from simcore.apps.plan.answer import Answer
from simcore.apps.plan.fronts import non_dominated
from simcore.apps.prices import PriceList
from simcore.records import dataclass

_DAY_S: Final = 86400.0


@dataclass(frozen=True)
class Size:
    """The best on a cluster; ``tokens``: all to be trained on; ``per_million``: cost of a million.

    ``needless``: another has no more GPUs, is as quick and, where prices are known, no dearer.
    """

    cluster: str
    gpus: int
    strategy: str
    step_s: float
    tokens_per_s: float
    gap: float
    tokens: float | None = None
    per_million: float | None = None
    needless: bool = False

    @property
    def seconds(self) -> float | None:
        """For all tokens."""
        return None if self.tokens is None else self.tokens / self.tokens_per_s

    @property
    def gpu_hours(self) -> float | None:
        """GPUs times hours for all tokens."""
        return None if self.seconds is None else self.gpus * self.seconds / 3600

    @property
    def cost(self) -> float | None:
        """Of all tokens."""
        known = self.tokens is not None and self.per_million is not None
        return self.tokens / 1e6 * self.per_million if known else None  # type: ignore[operator]

    def in_time(self, deadline_s: float | None) -> bool:
        """Whether all tokens are trained on by then; there may be no such time."""
        return deadline_s is None or (self.seconds is not None and self.seconds <= deadline_s)


@dataclass(frozen=True)
class Front:
    """``sizes`` with the fewest GPUs first; ``deadline_s``: when all tokens are to be trained on.

    ``objective``: see :data:`~simcore.apps.plan.asking.OBJECTIVES`; ``prices``: None where not known;
    ``counted``: what throughput counts, "tokens" or "samples", and in
    ``short``.
    """

    sizes: tuple[Size, ...]
    deadline_s: float | None = None
    objective: str = "time"
    prices: PriceList | None = None
    counted: str = "tokens"
    short: str = "tok"

    @property
    def fewest(self) -> Size | None:
        """The fewest GPUs that meet the deadline."""
        if self.deadline_s is None:
            return None
        return next((one for one in self.sizes if one.in_time(self.deadline_s)), None)

    @property
    def best(self) -> Size | None:
        """The first by the objective, of those in time; of all where none is."""
        among = [one for one in self.sizes if one.in_time(self.deadline_s)] or list(self.sizes)
        quick = {one: -one.tokens_per_s for one in among}
        order = {
            "time": lambda one: (quick[one], one.gpus),
            "cost": lambda one: (one.per_million or 0.0, quick[one]),
            "gpus": lambda one: (one.gpus, quick[one]),
        }[self.objective]
        return min(among, key=order, default=None)

    def as_object(self) -> dict[str, Any]:
        """For ``--json``."""
        priced = self.prices
        return {
            "objective": self.objective,
            "front": [
                {
                    "cluster": one.cluster, "gpus": one.gpus, "strategy": one.strategy,
                    "step_time_s": one.step_s, "tokens_per_s": one.tokens_per_s, "seconds": one.seconds,
                    "gpu_hours": one.gpu_hours, "cost": one.cost, "cost_per_million_tokens": one.per_million,
                    "gap": one.gap, "dominated": one.needless,
                }
                for one in self.sizes
            ],
            "fewest_gpus": self.fewest.gpus if self.fewest is not None else None,
            "prices": None if priced is None else {
                "currency": priced.currency, "source": priced.source, "date": priced.date.isoformat(),
            },
        }  # fmt: skip

    def lines(self) -> list[str]:
        """For the terminal: two lines for each, the cluster and its strategy in the second."""
        heads = [f"{'GPUs':>7} {'step s':>9} {f'{self.counted}/s':>10}"]
        if any(one.tokens for one in self.sizes):
            heads.append(f"{'days':>8} {'GPU-h':>9}")
        if self.prices is not None:
            money = self.prices.currency
            heads.append(f"{f'{money}/M{self.short}':>10}")
            heads += [f"{money:>10}"] if any(one.tokens for one in self.sizes) else []
        out = [" ".join(heads)]
        for one in self.sizes:
            row = [f"{one.gpus:>7} {one.step_s:9.4g} {one.tokens_per_s:10.4g}"]
            if one.seconds is not None and one.gpu_hours is not None:
                row.append(f"{one.seconds / _DAY_S:8.1f} {one.gpu_hours:9.3g}")
            row += [f"{value:10.4g}" for value in (one.per_million, one.cost) if value is not None]
            out += [" ".join(row) + (" -" if one.needless else ""), f"   {one.cluster}: {one.strategy}"]
        if any(one.needless for one in self.sizes):
            out.append(
                "-: no more GPUs are as quick" + (" and no dearer" if self.prices else "") + " elsewhere"
            )
        if self.deadline_s is not None:
            few = self.fewest
            days = f"{self.deadline_s / _DAY_S:g} days"
            out.append(
                f"none of these is done in {days}" if few is None else f"{few.gpus} GPUs are done in {days}"
            )
        if len(self.sizes) > 1 and self.best is not None:
            word = {"time": "the quickest", "cost": "the cheapest", "gpus": "the fewest"}[self.objective]
            in_time = " in time" if self.deadline_s is not None and self.fewest is not None else ""
            out.append(f"{word}{in_time}: {self.best.cluster}")
        return out


def front(
    answers: Sequence[Answer],
    amount: Amount | None,
    deadline_s: float | None,
    objective: str = "time",
    prices: PriceList | None = None,
) -> Front:
    """Of answers on ascending numbers of GPUs; those on which nothing fits are left out.

    ``amount``: what is to be trained on.
    """
    sizes: list[Size] = []
    for answer in answers:
        if not answer.told:
            continue
        question, best = answer.planned.question, answer.told[0]
        search, cluster = answer.planned.search, answer.planned.question.cluster
        assert search is not None
        speed = best.number("tokens_per_s")
        sizes.append(
            Size(
                cluster=cluster.name,
                gpus=cluster.num_placed,
                strategy=question.named(best.trial.settings),
                step_s=best.step_s,
                tokens_per_s=speed,
                gap=search.certificate(answer.ranked[0]).gap,
                tokens=None if amount is None else amount.of(*question.ground.length),
                per_million=None if prices is None else prices.per_million_tokens(cluster, speed),
            )
        )
    ground = answers[0].planned.question.ground
    return Front(marked(sizes), deadline_s, objective, prices, ground.counted, ground.counted_short)


def marked(sizes: Sequence[Size]) -> tuple[Size, ...]:
    """``sizes``, of which those are ``needless`` that another one is no worse than in anything."""
    kept = non_dominated(sizes, lambda one: (one.gpus, -one.tokens_per_s, one.per_million or 0.0))
    return tuple(replace(one, needless=one not in kept) for one in sizes)
