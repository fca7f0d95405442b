"""What a plan says on a terminal, in 80 columns: a table, why the best beats the default, what is proven."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from textwrap import wrap
from typing import Final

from simcore.apps.plan.explained import Explained
from simcore.apps.plan.fronts import less_memory
from simcore.apps.plan.planning import Planned
from simcore.apps.prices import PriceList
from simcore.planning.search import Trial
from simcore.units import GIB

_WIDTH: Final = 80

#: What stands beside the fastest.
SIMPLEST, ROOMY, DEFAULT = "~", "+", "="
MARKS: Final = {
    SIMPLEST: "the simplest that measured runs do not tell apart from the first",
    ROOMY: "the fastest of those simulated with more room in memory than predictions miss",
    DEFAULT: "the job as it is by default",
}


def in_columns(lines: Iterable[str]) -> str:
    """``lines`` with those that are too long for a terminal broken between words."""
    return "\n".join(part for line in lines for part in wrap(line, _WIDTH, subsequent_indent="  ") or [""])


def table(
    plan: Planned, best: Sequence[Explained], beside: Mapping[str, Explained], prices: PriceList | None
) -> list[str]:
    """``best``, the fastest first, and those that stand ``beside`` them: strategy, then its numbers."""
    short = plan.question.ground.counted_short
    money = f" {f'{prices.currency}/M{short}':>9}" if prices is not None else ""
    lines = [
        f"{'step s':>12}{'80% band':>12}{f'{short}/s/GPU':>11}{'MFU':>7}{'GiB':>8}{'bubble':>9}{'comm.':>8}"
        f"{money}"
    ]
    rows = {str(rank): one for rank, one in enumerate(best, start=1)}
    for mark, one in beside.items():
        same = next((known for known in rows if rows[known] is one), None)
        rows[mark if same is None else f"{same}{mark}"] = rows.pop(same) if same is not None else one
    for mark, one in rows.items():
        lines.append(f"{mark:>2} {plan.question.named(one.trial.settings)}")
        lines.append(_numbers(plan, one, prices))
    lines.append("bubble: no work for a stage; comm.: communication alone; shares of the step")
    lines += [f"{mark}: {said}" for mark, said in MARKS.items() if mark in beside]
    if any(plan.question.is_tight(one.trial.appraised.peak_bytes) for one in rows.values()):
        lines.append("*: fits by less than predictions of memory miss")
    return lines


def _numbers(plan: Planned, one: Explained, prices: PriceList | None) -> str:
    low, high = (one.band[end] / one.step_s - 1 for end in ("low_s", "high_s"))
    peak = one.trial.appraised.peak_bytes
    tight = "*" if plan.question.is_tight(peak) else " "
    band, comm = f"{low:+.0%} {high:+.0%}", one.number("exposed_communication_s") / one.step_s
    line = (
        f"{one.step_s:12.4g}{band:>12}{one.outcome.tokens_per_s_per_gpu:11.1f}{one.number('mfu'):7.1%}"
        f"{peak / GIB:7.1f}{tight}{one.number('bubble'):9.1%}{comm:8.1%}"
    )
    if prices is None:
        return line
    return f"{line} {prices.per_million_tokens(plan.question.cluster, one.number('tokens_per_s')):9.4g}"


def leaner(ranked: Sequence[Trial]) -> list[str]:
    """What less memory costs in time: of what was simulated, those that nothing beats in both."""
    front = less_memory(ranked)
    if len(front) < 2:
        return []
    first = front[0].step_s or 0.0
    return [
        f"{'less memory, of those simulated' if k == 0 else '':<32}{one.appraised.peak_bytes / GIB:6.1f} GiB"
        f" {(one.step_s or 0.0) / first - 1:+6.1%}  number {ranked.index(one) + 1}"
        for k, one in enumerate(front[1:])
    ]


def proof(plan: Planned, ranked: Sequence[Trial]) -> str:
    """The certificate of the first of ``ranked`` in a sentence."""
    search = plan.search
    assert search is not None
    found = search.certificate(ranked[0])
    what = (
        f"{search.num_simulated} of {plan.census.num_candidates:,} simulated; in this model no other legal"
        f" candidate is more than {found.gap:.1%} faster"
    )
    num_as_good = sum((trial.step_s or math.inf) <= search.as_good_s() for trial in ranked)
    if num_as_good > 1:
        fastest = min(ranked, key=lambda trial: trial.step_s or math.inf)
        what += (
            f"; than any of the first {num_as_good} none is by more than {search.gap:.1%}, so that the"
            f" simplest of them is first (number {ranked.index(fastest) + 1} is the fastest)"
        )
    if found.exhaustive:
        return what
    why = "interrupted" if plan.interrupted else "the budget is spent"
    return f"{what} ({why}: {search.num_below()} candidates are open; ask again to go on)"


def why(best: Explained, default: Explained) -> str:
    """What the best has less and more of than the default, in shares of the default's step."""
    if best.trial is default.trial:
        return "the job is at its best by default"
    step_s = default.step_s
    gains = []
    for name, said in (
        ("exposed_compute", "compute"), ("overlapped", "compute beside communication"),
        ("exposed_communication", "exposed communication"), ("idle", "bubble and other idleness"),
    ):  # fmt: skip
        change = (best.breakdown_s[name] - default.breakdown_s[name]) / step_s
        if abs(change) >= 0.001:
            gains.append(f"{abs(change):.1%} {'less' if change < 0 else 'more'} {said}")
    total = 1 - best.step_s / step_s
    return f"{total:.1%} less time than the default's {step_s:.4g} s: {', '.join(gains)}"
