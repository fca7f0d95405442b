"""Answers for values that a run on shapes does not have, with who asked for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workloads.tracing.sites import call_site


@dataclass(frozen=True)
class ValueAsked:
    """One site: what was asked ("item": a value, "share": the true part of a mask), and the answer."""

    site: str
    kind: str
    answer: float
    overridden: bool


class ValuePolicy:
    """Default answers unless the user gave one for the site; ``asked`` counts what was asked."""

    def __init__(self, values: Sequence[tuple[str, float]] = ()) -> None:
        self._values = dict(values)
        self.asked: Counter[ValueAsked] = Counter()
        self.used: set[str] = set()

    def __call__(self, kind: str, _tensor: Any, default: Any) -> Any:
        """The answer at the current call site."""
        site = call_site()
        given = next((key for key in self._values if site == key or site.endswith("/" + key)), None)
        answer = default if given is None else self._values[given]
        if given is not None:
            self.used.add(given)
        self.asked[ValueAsked(site, kind, float(answer), given is not None)] += 1
        return answer
