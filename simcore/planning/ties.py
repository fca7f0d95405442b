"""Who is really first: strategies that measured runs do not tell apart, and the simplest among them."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Final

from simcore.elementary import log
from workloads.evidence import Siblings
from workloads.jobs import Description
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


def complexity(job: Description) -> tuple[int, ...]:
    """Order of simplicity: axes that split the model, classes of layers with strategies of their own, ranks
    and chunks that share it, recomputation.
    """
    p, t = job.parallel, job.training
    degrees = (p.tp, p.pp, p.cp, p.ep)
    words = [getattr(p.strategy, layers) for layers in WORDS if layers != "embedding"]
    return (
        sum(degree > 1 for degree in degrees), sum(map(bool, words)), p.tp * p.pp * p.cp, p.virtual_stages,
        int(t.recompute != "none"), t.micro_batch,
    )  # fmt: skip
