"""What a sweep says: how many cases ended how, the best of them, and one JSON object."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from simcore.apps.run.outcome import Outcome
from simcore.apps.sweep.costs import Rates, cheapest
from simcore.apps.sweep.sweeping import Swept, SweptCase, words
from simcore.units import GIB

_SHOWN: Final = 10


def row_object(found: Swept, case: SweptCase, priced: Rates) -> dict[str, Any]:
    """A case for ``--json``."""
    outcome = found.outcomes[case.number]
    cost = priced[case.number].as_object(outcome) if case.number in priced else {}
    return {"case": case.number, "settings": dict(case.said), **outcome.model_dump(mode="json"), **cost}


def counts(found: Swept) -> Counter[str]:
    """Cases by status."""
    return Counter(found.status(case) for case in found.cases)


def reasons(found: Swept, status: str) -> dict[str, int]:
    """Cases of a status by reason, the most frequent first."""
    told = (found.outcomes[case.number].reason for case in found.cases if found.status(case) == status)
    return dict(Counter(told).most_common())


def json_of(found: Swept, priced: Rates, files: Mapping[str, Path], wall_s: float) -> dict[str, Any]:
    """The object of ``--json``."""
    by_status = counts(found)
    best, least = found.best, cheapest(found, priced)
    return {
        "num_cases": len(found.cases),
        "num_done": by_status["done"],
        "num_open": by_status["open"],
        "num_known": found.known,
        "num_simulated": found.simulated,
        "refused": reasons(found, "refused"),
        "out_of_memory": by_status["out_of_memory"],
        "failed": [row_object(found, case, priced) for case in found.cases if found.status(case) == "failed"],
        "best": None if best is None else row_object(found, best, priced),
        "cheapest": None if least is None else row_object(found, least, priced),
        "interrupted": found.interrupted,
        **{name: str(path) for name, path in files.items()},
        "wall_s": wall_s,
    }


def lines(found: Swept, priced: Rates) -> list[str]:
    """For the terminal: how many ended how, the best, and which of them is the cheapest."""
    by_status = counts(found)
    out = [
        f"{len(found.cases):,} cases: {by_status['done']:,} done, {by_status['out_of_memory']:,} do not fit,"
        f" {by_status['refused']:,} refused, {by_status['failed']:,} failed, {by_status['open']:,} open;"
        f" {found.simulated:,} simulated now"
    ]
    for status in ("refused", "failed"):
        for reason, number in list(reasons(found, status).items())[:5]:
            out.append(f"  {status} {number:>6,}: {reason}")
    done = sorted((case for case in found.cases if found.status(case) == "done"), key=found.order)
    money = f" {'cost/Mtok':>13}" if priced else ""
    if done:
        out.append(
            f"{'case':>7} {'step s':>8} {'tok/s/GPU':>9} {'MFU':>6} {'GiB':>6} {'GPUs':>7}{money}  settings"
        )
    for case in done[:_SHOWN]:
        one = found.outcomes[case.number]
        out.append(
            f"{case.number:>7,} {one.step_time_s:8.4g} {one.tokens_per_s_per_gpu:9.1f} {one.mfu or 0:6.1%}"
            f" {(one.peak_memory_bytes or 0) / GIB:6.1f} {one.gpus:>7,}{_cost(case, one, priced)}"
            f"  {words(case.said)}"
        )
    least = cheapest(found, priced)
    if least is not None:
        cost = _cost(least, found.outcomes[least.number], priced).strip()
        out.append(f"the cheapest per token: case {least.number:,}, {cost} a million")
    return out


def _cost(case: SweptCase, one: Outcome, priced: Rates) -> str:
    if not priced:
        return ""
    rate = priced.get(case.number)
    cost = None if rate is None else rate.million_tokens(one)
    return f" {'' if rate is None or cost is None else f'{cost:.4g} {rate.currency}':>13}"
