"""All candidates of a question, counted: what is refused and why, what fits, and where something would."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from typing import Any, Final

from simcore.errors import InputError
from simcore.planning.appraisal import Appraised
from simcore.planning.ground import Settings
from simcore.planning.question import Question
from simcore.planning.space import asked_axes, candidates
from simcore.planning.words import short_form
from simcore.records import dataclass
from simcore.units import GIB
from workloads.jobs import Description
from workloads.jobs.advice import peak_bytes, what_fits

_SHOWN: Final = 8
#: Numbers of a reason, but for those that are part of a name, as of "zero1" and "1f1b".
_NUMBER: Final = re.compile(r"(?<![\w.])\d+(?:[.,]\d+)*(?!\w)")

#: Times as many GPUs that are tried, and what splits a model further.
_TIMES: Final = (2, 4, 8, 16, 32, 64)
_SPLITTING: Final = ("tp", "ep", "etp", "pp", "sharding")


@dataclass(frozen=True)
class Kind:
    """Reasons that differ in numbers alone: how many candidates in ``total``, the ``commonest`` of them.

    ``count``: candidates with that one.
    """

    commonest: str
    count: int
    total: int

    def __str__(self) -> str:
        return self.commonest + (f" ({self.count:,}), or other numbers" if self.count < self.total else "")


def kinds(rejected: Mapping[str, int]) -> list[Kind]:
    """Candidates by reason as kinds of reasons, the most frequent kind first."""
    alike: dict[str, list[str]] = defaultdict(list)
    for reason in rejected:
        alike[_NUMBER.sub("0", reason)].append(reason)
    found = [
        Kind(
            first := max(reasons, key=rejected.__getitem__),
            rejected[first],
            sum(map(rejected.__getitem__, reasons)),
        )
        for reasons in alike.values()
    ]
    return sorted(found, key=lambda kind: -kind.total)


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
            job, needs_bytes = self._leanest()
            available, needed = self.question.available_bytes / GIB, needs_bytes / GIB
            more = _more_gpus(self.question)
            if more is None:
                changes = what_fits(job, self.question.available_bytes)[:2]
            else:
                changes = [
                    f"{more.num_gpus:,} of them: {more.strategy} needs {more.peak_bytes / GIB:.1f} GiB"
                ]
            return (
                f"the leanest, {short_form(job)}, needs {needed:.1f} GiB of {available:.1f}: GPUs with"
                f" {needed - available:.1f} GiB more, or {'; '.join(changes or ['another model'])}"
            )
        if not self.rejected:
            return "the space is empty"
        first = kinds(self.rejected)[0]
        one = next(one for one in self.every if one.reason == first.commonest)
        return (
            f"most often ({first.total:,} of {self.num_candidates:,}): {self.question.refusal(one.settings)}"
        )

    def _leanest(self) -> tuple[Description, int]:
        """Of those without memory the one that needs least, and how much: what was noted may be a bound."""
        best: tuple[Description, int] | None = None
        for one in sorted((one for one in self.every if one.peak_bytes), key=lambda one: one.peak_bytes):
            if best is not None and one.peak_bytes >= best[1]:
                break
            job = self.question.completed(one.settings)
            needs_bytes = peak_bytes(job)
            if best is None or needs_bytes < best[1]:
                best = job, needs_bytes
        assert best is not None
        return best

    def lines(self) -> list[str]:
        """For the terminal: the commonest kinds of reasons first."""
        available = self.question.available_bytes / GIB
        tight = sum(self.question.is_tight(one.peak_bytes) for one in self.fitting)
        out = [
            f"{self.num_candidates:,} candidates: {len(self.fitting):,} legal and in memory"
            f" ({available:.1f} GiB), {tight:,} of them by less than predictions of memory miss"
        ]
        ordered = kinds(self.rejected)
        for kind in ordered[:_SHOWN]:
            least = self.leanest.get(kind.commonest)
            numbers = f": at least {least.peak_bytes / GIB:.1f} GiB of {available:.1f}" if least else ""
            out.append(f"  {kind.total:,}: {kind}{numbers}")
        if len(ordered) > _SHOWN:
            others = ordered[_SHOWN:]
            out.append(f"  {sum(kind.total for kind in others):,}: {len(others)} other reasons")
        return out


@dataclass(frozen=True)
class MoreGpus:
    """The fewest GPUs, by doubling, on which something fits: the leanest there, its peak in bytes."""

    num_gpus: int
    strategy: str
    peak_bytes: int


def _more_gpus(question: Question) -> MoreGpus | None:
    """Where the job fits with one sample a microbatch and all recomputed; None where on none tried."""
    if question.ground.classes:  # what relieves a list of blocks is advice on the job
        return None
    axes = [(axis, values) for axis, values in asked_axes("", question.said) if axis.name in _SPLITTING]
    for times in _TIMES:
        cluster = replace(question.cluster, num_nodes=question.cluster.num_nodes * times)
        larger = replace(question, cluster=cluster, overrides={**question.overrides, **_leanest(question)})
        try:
            fitting = [
                found for one in candidates(larger.ground, axes) if not (found := larger.examined(one)).reason
            ]
        except InputError:  # more GPUs than the batch has samples, say
            continue
        if fitting:
            best = min(fitting, key=lambda one: one.peak_bytes)
            return MoreGpus(cluster.num_gpus, short_form(larger.completed(best.settings)), best.peak_bytes)
    return None


def _leanest(question: Question) -> Settings:
    """Settings that need least memory, of those that the job leaves open."""

    def found() -> Iterator[tuple[str, str]]:
        if "training.micro_batch" not in question.said:
            yield "training.micro_batch", "1"
        if "training.recompute" not in question.said and "full" in question.ground.supports("recompute"):
            yield "training.recompute", "full"

    return dict(found())
