"""Several numbers of GPUs: the best strategy on each, what more of them bring, the fewest for a deadline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from simcore.apps.plan.answer import Answer
from simcore.planning.words import short_form


@dataclass(frozen=True)
class Size:
    """The best on so many GPUs; ``seconds`` for all tokens; ``needless``: fewer GPUs are as quick."""

    gpus: int
    strategy: str
    step_s: float
    tokens_per_s: float
    seconds: float | None
    gap: float
    needless: bool

    @property
    def gpu_hours(self) -> float | None:
        """GPUs times hours for all tokens."""
        return None if self.seconds is None else self.gpus * self.seconds / 3600


@dataclass(frozen=True)
class Front:
    """``sizes`` with the fewest GPUs first; ``deadline_s``: when all tokens are to be trained on."""

    sizes: tuple[Size, ...]
    tokens: float | None
    deadline_s: float | None

    @property
    def fewest(self) -> Size | None:
        """The fewest GPUs that meet the deadline."""
        if self.deadline_s is None:
            return None
        return next((one for one in self.sizes if (one.seconds or 0.0) <= self.deadline_s), None)

    def as_object(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "front": [
                {
                    "gpus": one.gpus, "strategy": one.strategy, "step_time_s": one.step_s,
                    "tokens_per_s": one.tokens_per_s, "seconds": one.seconds, "gpu_hours": one.gpu_hours,
                    "gap": one.gap, "dominated": one.needless,
                }
                for one in self.sizes
            ],
            "fewest_gpus": self.fewest.gpus if self.fewest is not None else None,
        }  # fmt: skip

    def lines(self) -> list[str]:
        """For the terminal."""
        out = [f"{'GPUs':>6} {'strategy':<36} {'step s':>8} {'tokens/s':>10} {'days':>7} {'GPU-h':>8}"]
        for one in self.sizes:
            days = "" if one.seconds is None else f"{one.seconds / 86400:.1f}"
            hours = "" if one.gpu_hours is None else f"{one.gpu_hours:.3g}"
            note = " -" if one.needless else ""
            out.append(
                f"{one.gpus:>6} {one.strategy[:36]:<36} {one.step_s:8.4g} {one.tokens_per_s:10.4g}"
                f" {days:>7} {hours:>8}{note}"
            )
        if any(one.needless for one in self.sizes):
            out.append("-: fewer GPUs are as quick")
        if self.deadline_s is not None:
            days = f"{self.deadline_s / 86400:g} days"
            out.append(
                f"fewest GPUs for {days}: {self.fewest.gpus}"
                if self.fewest is not None
                else f"none of these finish in {days}"
            )
        return out


def front(answers: Sequence[Answer], tokens: float | None, deadline_s: float | None) -> Front:
    """Of answers on ascending numbers of GPUs; those on which nothing fits are left out."""
    sizes: list[Size] = []
    for answer in answers:
        if not answer.told:
            continue
        question, best = answer.planned.question, answer.told[0]
        search = answer.planned.search
        assert search is not None
        speed = best.shown["tokens_per_s"]
        sizes.append(
            Size(
                gpus=question.cluster.num_gpus,
                strategy=short_form(question.completed(best.trial.settings)),
                step_s=best.shown["step_time_s"],
                tokens_per_s=speed,
                seconds=None if tokens is None else tokens / speed,
                gap=search.certificate().gap,
                needless=any(speed <= one.tokens_per_s for one in sizes),
            )
        )
    return Front(tuple(sizes), tokens, deadline_s)
