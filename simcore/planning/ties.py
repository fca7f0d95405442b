"""Who is really first: strategies that measured runs do not tell apart, and the simplest among them."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Final

from simcore.elementary import log
from simcore.planning.question import Question
from simcore.planning.search import Search, Trial
from workloads.evidence import Siblings
from workloads.parallel.spec import ParallelSpec, TrainingSpec
from workloads.parallel.strategy import WORDS

#: Strategies are told apart where predictions order measured ones rightly with this probability.
LEVEL: Final = 0.8
_DRAWS: Final = 2_000


def first_is_fastest(steps_s: Sequence[float], known: Siblings) -> float:
    """Probability that the first of ``steps_s``, ascending, is the fastest when all are measured.

    Each gets an error of its own, drawn so that ratios of two miss by as much as those of measured siblings:
    such an error over the root of two, either way.
    """
    draw = random.Random(0)
    logs = [log(step_s / steps_s[0]) for step_s in steps_s]
    first = 0.0
    for _ in range(_DRAWS):
        missed = [at + draw.choice(known.errors) * draw.choice((-1, 1)) / math.sqrt(2) for at in logs]
        least = min(missed)
        first += (missed[0] == least) / missed.count(least)
    return first / _DRAWS


def complexity(p: ParallelSpec, t: TrainingSpec) -> tuple[int, ...]:
    """Order of simplicity: axes that split the model, classes of layers with strategies of their own, ranks
    and chunks that share it, recomputation.
    """
    degrees = (p.tp, p.pp, p.cp, p.ep)
    words = [getattr(p.strategy, layers) for layers in WORDS if layers != "embedding"]
    return (
        sum(degree > 1 for degree in degrees), sum(map(bool, words)), p.tp * p.pp * p.cp, p.virtual_stages,
        int(t.recompute != "none"), t.micro_batch,
    )  # fmt: skip


def simplicity(question: Question, trial: Trial) -> tuple[float, ...]:
    """Order of what is as good: the simpler first, then what has room in memory, then the faster."""
    job = question.completed(trial.settings)
    return (
        *complexity(job.parallel, job.training),
        question.is_tight(trial.appraised.peak_bytes),
        trial.step_s or math.inf,
    )


def simplest_first(question: Question, search: Search) -> list[Trial]:
    """What was simulated, the fastest first, but for those than which nothing is faster by more than the gap.

    They come before all others, the simplest first: what was asked to be proven holds of each of them.
    """
    ranked = search.ranked()
    limit_s = search.as_good_s() if ranked else 0.0
    as_good = [trial for trial in ranked if (trial.step_s or math.inf) <= limit_s]
    return sorted(as_good, key=lambda trial: simplicity(question, trial)) + ranked[len(as_good) :]
