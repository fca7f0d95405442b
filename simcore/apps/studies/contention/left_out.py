"""The model's numbers fitted to all traces but one, and tried on that one.

What was found on recorded kernels (:class:`Physics`) is forgotten: the fit begins where nothing of it is
known (a block of communication takes an SM of everybody, memory and last waves are like anything else) and
changes one number at a time, as long as kernels of the other traces come nearer.  What those cannot tell
stays unknown.  What has no number of its own stays: blocks of an exchange end with their peers' data, few
blocks need few SMs, what fills the GPU needs a second wave, HBM and L2 are as data sheets say.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from simcore.apps.studies.contention.beside import Beside, Physics
from simcore.apps.studies.contention.summary import nearness

UNKNOWN: Final = Physics(
    partners=False,
    full_us=0.0,
    saturating=1.0,
    in_common=0.0,
    side_by_side=1.0,
)
_TRIED: Final[Mapping[str, tuple[Any, ...]]] = {
    "partners": (False, True),
    "full_us": (0.0, 2.0, 4.0, 8.0, 12.0, 16.0, 24.0),
    "saturating": (1.0, 0.95, 0.9, 0.85, 0.8, 0.75),
    "in_common": (0.0, 0.2, 0.35, 0.5),
    "side_by_side": (1.0, 0.6, 0.4, 0.2, 0.0),
}
#: A number is changed for at least so much less error, or other numbers would follow noise.
_WORTH: Final = 1e-4

Case = tuple[Beside, float]  # a kernel, and its recorded time in ps


def left_out(traces: Mapping[str, Sequence[Case]]) -> dict[str, dict[str, Any]]:
    """By trace, what a fit to the others says of it: the numbers, shares within bounds, time added.

    Each trace weighs alike.  Grids that nobody recorded tell nothing of waves, so numbers are fitted without
    them.  Empty for fewer than two traces.
    """
    if len(traces) < 2:
        return {}
    told = {name: [(beside.told(), time) for beside, time in cases] for name, cases in traces.items()}
    known: dict[Physics, dict[str, list[float]]] = {}
    single: dict[tuple[object, ...], float] = {}

    def time(physics: Physics, beside: Beside) -> float:
        """Time of one kernel; numbers that do not concern it are tried once."""
        demand = beside.demand(physics)
        blocks, lost = demand[1], demand[6]
        waves = (physics.in_common, physics.side_by_side) if blocks and lost else ()
        key = id(beside), demand, beside.holdings(physics), waves
        if key not in single:
            single[key] = float(beside.time_ps(physics))
        return single[key]

    def times(physics: Physics) -> dict[str, list[float]]:
        found = known.get(physics)
        if found is None:
            found = known[physics] = {
                name: [time(physics, beside) for beside, _ in cases] for name, cases in told.items()
            }
        return found

    def error(physics: Physics, names: Sequence[str]) -> float:
        """Mean distance of predicted from recorded times, logarithmic."""
        predicted = times(physics)
        return sum(
            sum(
                abs(math.log(predicted_ps / recorded))
                for predicted_ps, (_, recorded) in zip(predicted[name], told[name], strict=True)
            )
            / len(traces[name])
            for name in names
        ) / len(names)

    found = {}
    for name, cases in traces.items():
        physics = _fit([other for other in traces if other != name], error)
        found[name] = {"fitted": asdict(physics)} | nearness(
            [beside.alone_ps for beside, _ in cases], [recorded for _, recorded in cases],
            [time(physics, beside) for beside, _ in cases],
        )  # fmt: skip
    return found


def _fit(names: Sequence[str], error: Any) -> Physics:
    """The numbers that come nearest to the traces of ``names``, found one at a time."""
    best, least = UNKNOWN, error(UNKNOWN, names)
    while True:
        tried = [
            replace(best, **{key: value})
            for key, values in _TRIED.items()
            for value in values
            if value != getattr(best, key)
        ]
        next_best = min(tried, key=lambda physics: float(error(physics, names)))
        if error(next_best, names) > least - _WORTH:
            return best
        best, least = next_best, error(next_best, names)
