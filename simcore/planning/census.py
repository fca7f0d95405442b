"""All candidates of a question, counted: what is refused and why, what fits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from simcore.planning.appraisal import Appraised
from simcore.planning.question import Question
from simcore.planning.words import short_form
from simcore.units import GIB
from workloads.jobs.advice import what_fits

_SHOWN = 8


@dataclass
class Census:
    """``rejected``: how many candidates by reason; ``fitting``: the others; ``every``: all, in order;
    ``leanest``: of those without memory, by reason.
    """

    question: Question
    rejected: dict[str, int] = field(default_factory=dict)
    fitting: list[Appraised] = field(default_factory=list)
    leanest: dict[str, Appraised] = field(default_factory=dict)
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
            least = self.leanest.setdefault(reason, candidate)
            if candidate.peak_bytes < least.peak_bytes:
                self.leanest[reason] = candidate

    def as_object(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "num_candidates": self.num_candidates,
            "rejected": dict(sorted(self.rejected.items(), key=lambda item: -item[1])),
        }

    def advice(self) -> str:
        """Which rule stands in the way where nothing fits, by how much, and what would help."""
        if self.leanest:
            one = min(self.leanest.values(), key=lambda one: one.peak_bytes)
            job = self.question.completed(one.settings)
            available = self.question.available_bytes / GIB
            needed = one.peak_bytes / GIB
            changes = "; ".join(what_fits(job, self.question.available_bytes)[:2])
            return (
                f"the leanest, {short_form(job)}, needs {needed:.1f} GiB of {available:.1f}: GPUs with"
                f" {needed - available:.1f} GiB more, or more of them; {changes}"
            )
        if not self.rejected:
            return "the space is empty"
        reason, count = max(self.rejected.items(), key=lambda item: item[1])
        one = next(one for one in self.every if one.reason == reason)
        return f"most often ({count:,} of {self.num_candidates:,}): {self.question.refusal(one.settings)}"

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
            least = self.leanest.get(reason)
            numbers = f": at least {least.peak_bytes / GIB:.1f} GiB of {available:.1f}" if least else ""
            out.append(f"  {count:,}: {reason}{numbers}")
        if len(ordered) > _SHOWN:
            out.append(
                f"  {sum(count for _, count in ordered[_SHOWN:]):,}: {len(ordered) - _SHOWN} other reasons"
            )
        return out
