"""What a plan says as a JSON object, and which of its strategies measured runs do not tell apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simcore.apps.plan.explained import Explained
from simcore.apps.plan.fronts import less_memory
from simcore.apps.plan.planning import Planned
from simcore.planning.search import Trial
from simcore.planning.ties import LEVEL, first_is_fastest, simplicity
from simcore.records import dataclass
from workloads.evidence import siblings


def candidate_object(plan: Planned, trial: Trial, known: Mapping[int, Explained]) -> dict[str, Any]:
    """A candidate for ``--json``; ``known``: what was looked at, by ``id`` of its trial."""
    one = known.get(id(trial))
    peak = trial.appraised.peak_bytes
    found: dict[str, Any] = {
        "strategy": plan.question.named(trial.settings),
        "settings": dict(trial.settings),
        "step_time_s": trial.step_s,
        "bound_s": trial.bound_s,
        "peak_memory_bytes": peak,
        "headroom_bytes": plan.question.available_bytes - peak,
        "tight": plan.question.is_tight(peak),
    }
    some = next(iter(known.values()), None)
    if some is not None and trial.step_s:
        # All have the same tokens and model flops on the same GPUs.
        faster = some.step_s / trial.step_s
        found["mfu"] = some.number("mfu") * faster
        found["tokens_per_s_per_gpu"] = some.outcome.tokens_per_s_per_gpu * faster
    if one is not None:
        found |= {"band": one.band, "breakdown_s": one.breakdown_s, "bubble": one.number("bubble")}
    return found


def json_of(
    plan: Planned,
    ranked: Sequence[Trial],
    told: Sequence[Explained],
    default_refused: str,
    wall_s: float,
) -> dict[str, Any]:
    """The object of ``--json``; ``told``: what was looked at, the best first."""
    search = plan.search
    known = {id(one.trial): one for one in told}
    jobs = [candidate_object(plan, trial, known) for trial in ranked]
    first = None
    if ranked:
        job = plan.question.completed(ranked[0].settings)
        first = {
            **jobs[0],
            "job": {
                "model": job.model.model_dump(mode="json", exclude_none=True),
                "parallel": job.parallel.model_dump(mode="json"),
                "training": job.training.model_dump(mode="json"),
                "software": job.software.name,
                "cluster": plan.question.cluster.name,
            },
        }
    return {
        "best": first,
        "default": candidate_object(plan, plan.default, known) if plan.default is not None else None,
        "default_refused": default_refused,
        "candidates": jobs,
        "less_memory": [ranked.index(trial) for trial in less_memory(ranked)],
        "num_simulated": search.num_simulated if search is not None else 0,
        **plan.census.as_object(),
        "certificate": search.certificate(ranked[0]).as_object() if search is not None and ranked else None,
        "polished": [one.as_object() for one in plan.polished],
        "ties": ties(plan, ranked).as_object() if ranked else None,
        "interrupted": plan.interrupted,
        "seconds": plan.seconds,
        "wall_s": wall_s,
    }


@dataclass(frozen=True)
class Ties:
    """What measured runs say of the order: ``within`` the ratio that they do not tell apart ``equal`` lie.

    ``num_open``: others that may lie there, by their bounds.  ``simplest``: of those simulated.
    ``first_is_fastest``: a probability, among all that were simulated.
    """

    within: float
    equal: tuple[Trial, ...]
    num_open: int
    simplest: Trial
    first_is_fastest: float
    num_pairs: int

    def as_object(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "ratio": self.within,
            "num_equal": len(self.equal),
            "num_open": self.num_open,
            "simplest": dict(self.simplest.settings),
            "first_is_fastest": self.first_is_fastest,
            "measured_pairs": self.num_pairs,
        }

    def line(self, ranked: Sequence[Trial]) -> str:
        """For the terminal."""
        others = f", {self.num_open:,} others may lie" if self.num_open else ""
        said = (
            f"{len(self.equal)} of those simulated lie{others} within {self.within - 1:.1%}: so close, fewer"
            f" than {LEVEL:.0%} of {self.num_pairs} measured pairs come in the order that was predicted; the"
            f" first is the fastest of those simulated with {self.first_is_fastest:.0%}"
        )
        place = ranked.index(self.simplest) + 1
        return said if place == 1 else f"{said}; number {place} is the simplest of them"


def ties(plan: Planned, ranked: Sequence[Trial]) -> Ties:
    """Of what was simulated, as it is shown."""
    known = siblings()
    within = known.ratio_of(LEVEL)
    steps_s = [trial.step_s or 0.0 for trial in ranked]
    limit_s = min(steps_s) * within
    equal = tuple(trial for trial, step_s in zip(ranked, steps_s, strict=True) if step_s <= limit_s)
    simplest = min(equal, key=lambda trial: simplicity(plan.question, trial))
    assert plan.search is not None
    num_open = len(plan.search.open_below(limit_s))
    return Ties(within, equal, num_open, simplest, first_is_fastest(steps_s, known), len(known.errors))
