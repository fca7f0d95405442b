"""Small spaces simulated whole: whether a search finds the true winner, and its certificate holds."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from simcore.apps.progress import say
from simcore.records import dataclass

_SMALL: Final = ("model.layers=4", "training.seq=2048", "training.global_batch=32")
_DEEPER: Final = ("model.layers=16", *_SMALL[1:])


@dataclass(frozen=True)
class Space:
    """What ``plan.py`` is asked: a model, a cluster, settings and axes."""

    model: str
    cluster: str
    settings: tuple[str, ...]
    search: str


#: Ten, as different as spaces of some dozens of candidates can be.
SPACES: Final = {
    "dense": Space("llama3-8b", "h100-16", _SMALL, "tp=1:2:4,pp=1:2:4,micro_batch=1:2"),
    "chunks": Space("llama3-8b", "h100-16", (*_DEEPER, "parallel.tp=2"), "pp,schedule,sharding"),
    "fsdp": Space("llama3-8b", "h200-16", (*_SMALL, "software.preset=torchtitan-fsdp2"), "tp=1:2,sharding"),
    "deepspeed": Space(
        "llama3-8b", "a100-16", (*_SMALL, "software.preset=deepspeed"),
        "tp=1:2,sharding,micro_batch=1:2,recompute",
    ),
    "experts": Space("mixtral-8x7b", "h100-16", _SMALL, "tp=1:2,ep,etp,micro_batch=1:2"),
    "context": Space(
        "llama3-8b", "h100-16", ("model.layers=4", "training.seq=16384", "training.global_batch=8"),
        "tp=1:2:4,cp,recompute",
    ),
    "schedules": Space(
        "llama3-8b", "h100-16", (*_DEEPER, "software.preset=torchtitan-fsdp2"),
        "pp=2:4,schedule,micro_batch=1:2",
    ),
    "two-ways": Space(
        "deepseek-v3", "h800-32", ("model.layers=8", "training.seq=4096", "training.global_batch=64"),
        "tp=1:2,ep=4:8,pp=2:4,schedule,recompute",
    ),
    "ampere": Space(
        "gpt3-22b", "a100-16", (*_SMALL, "software.preset=megatron-lm-2022"), "tp=2:4:8,pp=1:2:4,recompute"
    ),
    "fine": Space(
        "llama3-8b", "h100-16", (*_DEEPER, "parallel.tp=2", "training.recompute=full"),
        "pp=4,stage_layers,recompute_layers=1:2:4",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Exact:
    """A space simulated whole, and searched for a gap of 0 and of ``gap``.

    ``best_s``: the least step of all; ``found_s``, ``with_gap_s``: of what the searches found;
    ``lower_bound_s``: what the second says that none falls short of; ``bounds_hold``: no bound of the first
    is above its step.
    """

    num_candidates: int
    num_simulated: int
    num_with_gap: int
    best_s: float
    found_s: float
    with_gap_s: float
    lower_bound_s: float
    gap: float
    bounds_hold: bool

    @property
    def holds(self) -> bool:
        """Whether the winner is the true one, and both certificates are true."""
        return (
            self.found_s == self.best_s
            and self.lower_bound_s <= self.best_s
            and self.with_gap_s * (1 - self.gap) <= self.best_s
            and self.bounds_hold
        )


def exact(space: Space, gap: float = 0.02) -> Exact:
    """Simulate every candidate of a space that fits; search it twice, with these steps for simulations."""
    from simcore.apps.plan.asking import asked
    from simcore.planning.appraisal import Appraiser
    from simcore.planning.search import Search, settings_key
    from simcore.planning.space import asked_axes, candidates

    question = asked(space.model, space.cluster, space.settings).question
    appraiser = Appraiser(question)
    axes = asked_axes(space.search, question.said)
    listed = appraiser.appraised(list(candidates(question.ground, axes)))
    fitting = [one for one in listed if not one.reason]
    steps = {settings_key(one.settings): appraiser.simulated(one.settings) for one in fitting}
    searches = []
    for most in (0.0, gap):
        search = Search(fitting, appraiser.bound_ps, gap=most)
        for settings in search.jobs():
            search.learn(steps[settings_key(settings)])
        searches.append(search)
    whole, quick = searches
    assert whole.best is not None and quick.best is not None
    return Exact(
        num_candidates=len(fitting),
        num_simulated=whole.num_simulated,
        num_with_gap=quick.num_simulated,
        best_s=min(one.step_s for one in steps.values() if not one.reason),
        found_s=whole.best.step_s or 0.0,
        with_gap_s=quick.best.step_s or 0.0,
        lower_bound_s=quick.certificate().lower_bound_s,
        gap=gap,
        bounds_hold=all(
            trial.bound_s <= steps[settings_key(trial.settings)].step_s
            for trial in whole.trials
            if not steps[settings_key(trial.settings)].reason
        ),
    )


def exact_spaces() -> dict[str, Any]:
    """All of :data:`SPACES`, for ``--json``."""
    found = {}
    for name, space in SPACES.items():
        say(f"{name} ...")
        one = exact(space)
        found[name] = {**asdict(one), "holds": one.holds}
    return found


def exact_lines(found: dict[str, Any]) -> str:
    """For the terminal."""
    return "\n".join(
        f"{name:10} {row['num_candidates']:4} candidates, {row['num_simulated']:3} simulated for the winner"
        f" ({row['found_s']:.4g} s, the best of all {row['best_s']:.4g} s), {row['num_with_gap']:3} for a gap"
        f" of {row['gap']:.0%}: {'holds' if row['holds'] else 'DOES NOT HOLD'}"
        for name, row in found.items()
    )
