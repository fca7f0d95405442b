"""All candidates of a question, counted: what is refused and why, what fits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from simcore.planning.appraisal import Appraised
from simcore.planning.question import Question
from simcore.units import GIB

_SHOWN = 8


@dataclass
class Census:
    """``rejected``: how many candidates by reason; ``fitting``: the others; ``every``: all, in order."""

    question: Question
    rejected: dict[str, int] = field(default_factory=dict)
    fitting: list[Appraised] = field(default_factory=list)
    least_bytes: dict[str, int] = field(default_factory=dict)
    every: list[Appraised] = field(default_factory=list)

    @property
    def num_candidates(self) -> int:
        """Candidates in all."""
        return len(self.fitting) + sum(self.rejected.values())

    def add(self, candidate: Appraised) -> None:
        """Count one."""
        self.every.append(candidate)
        if not candidate.reason:
            self.fitting.append(candidate)
            return
        reason = candidate.reason
        self.rejected[reason] = self.rejected.get(reason, 0) + 1
        if candidate.peak_bytes:
            least = self.least_bytes.get(reason, candidate.peak_bytes)
            self.least_bytes[reason] = min(least, candidate.peak_bytes)

    def as_object(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "num_candidates": self.num_candidates,
            "rejected": dict(sorted(self.rejected.items(), key=lambda item: -item[1])),
        }

    def lines(self) -> list[str]:
        """For the terminal: the commonest reasons first."""
        available = self.question.available_bytes / GIB
        tight = sum(self.question.is_tight(one.peak_bytes) for one in self.fitting)
        out = [
            f"{self.num_candidates:,} candidates: {len(self.fitting):,} legal and in memory"
            f" ({available:.1f} GiB), {tight:,} of them by less than predictions of memory miss"
        ]
        ordered = sorted(self.rejected.items(), key=lambda item: -item[1])
        for reason, count in ordered[:_SHOWN]:
            least = self.least_bytes.get(reason)
            numbers = f": at least {least / GIB:.1f} GiB of {available:.1f}" if least else ""
            out.append(f"  {count:,}: {reason}{numbers}")
        if len(ordered) > _SHOWN:
            out.append(
                f"  {sum(count for _, count in ordered[_SHOWN:]):,}: {len(ordered) - _SHOWN} other reasons"
            )
        return out
