"""What a sweep says: how many cases ended how, the best of them, and one JSON object."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from simcore.apps.sweep.sweeping import Swept, SweptCase, words
from simcore.units import GIB

_SHOWN: Final = 10


def row_object(found: Swept, case: SweptCase) -> dict[str, Any]:
    """A case for ``--json``."""
    outcome = found.outcomes[case.number]
    return {"case": case.number, "settings": dict(case.said), **outcome.model_dump(mode="json")}


def counts(found: Swept) -> Counter[str]:
    """Cases by status."""
    return Counter(found.status(case) for case in found.cases)


def reasons(found: Swept, status: str) -> dict[str, int]:
    """Cases of a status by reason, the most frequent first."""
    told = (found.outcomes[case.number].reason for case in found.cases if found.status(case) == status)
    return dict(Counter(told).most_common())


def json_of(found: Swept, files: Mapping[str, Path], wall_s: float) -> dict[str, Any]:
    """The object of ``--json``."""
    by_status = counts(found)
    best = found.best
    return {
        "num_cases": len(found.cases),
        "num_done": by_status["done"],
        "num_open": by_status["open"],
        "num_known": found.known,
        "num_simulated": found.simulated,
        "refused": reasons(found, "refused"),
        "out_of_memory": by_status["out_of_memory"],
        "failed": [row_object(found, case) for case in found.cases if found.status(case) == "failed"],
        "best": None if best is None else row_object(found, best),
        "interrupted": found.interrupted,
        **{name: str(path) for name, path in files.items()},
        "wall_s": wall_s,
    }


def lines(found: Swept) -> list[str]:
    """For the terminal: how many ended how, and the best."""
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
    if done:
        out.append(f"{'case':>7} {'step s':>8} {'tok/s/GPU':>9} {'MFU':>6} {'GiB':>6} {'GPUs':>7}  settings")
    for case in done[:_SHOWN]:
        one = found.outcomes[case.number]
        out.append(
            f"{case.number:>7,} {one.step_time_s:8.4g} {one.tokens_per_s_per_gpu:9.1f} {one.mfu or 0:6.1%}"
            f" {(one.peak_memory_bytes or 0) / GIB:6.1f} {one.gpus:>7,}  {words(case.said)}"
        )
    return out
