"""Digests of results, recorded in ``tests/goldens/results.json``: a refactor moves none of them.

Run this file with ``--write`` to record what the engine says now (the commit that moves a digest says why),
or with ``--all-settings [JOB...]`` to compare all settings on the twelve jobs and those of the catalog.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np

from simcore.engine import SimulationResult
from simcore.engine.shortcuts import SHORTCUTS as ALL
from tests.engine.twelve_jobs import TWELVE, Job, job_of
from workloads import catalog

PATH = Path(__file__).parents[1] / "goldens" / "results.json"
#: The engine's exact shortcuts, as fields of ``Setup``; the first are the defaults.
SHORTCUTS: list[dict[str, Any]] = [
    {"shortcuts": frozenset(names)}
    for number in range(len(ALL), -1, -1)
    for names in combinations(ALL, number)
]
#: Every setting that must not change a result; the first is the default.
SETTINGS = [{**shortcuts, "fold": fold} for shortcuts, fold in product(SHORTCUTS, (True, False))]
Counters = dict[str, tuple[np.ndarray, np.ndarray]]


def digests(result: SimulationResult) -> dict[str, str | int]:
    """What a result says; all but the last two do not depend on which ranks stand for others.

    ``times``: ready, start and end of every op; ``alone``: its time alone; ``plans``: how it was carried out;
    of every rank in turn.  ``classes``: which ranks stand for which.  ``counters``: use of links by name and
    time, to the bit; only links of ranks that were simulated have some.
    """
    kinds = [
        repr((p.collective, p.num_bytes, p.algorithm, p.protocol, p.channels, p.alone_ps))
        for p in result.plans
    ]
    numbers = np.array([_digest(kind.encode()) for kind in ["", *kinds]], dtype="S32")
    times = [(t.ready_ps, t.start_ps, t.end_ps) for t in result.times]
    return {
        "step_ps": result.step_ps,
        "times": _by_rank(result, [_digest(*map(_integers, columns)) for columns in times]),
        "alone": _by_rank(result, [_digest(_integers(column)) for column in result.alone_ps]),
        "plans": _by_rank(result, [_digest(numbers[column + 1].tobytes()) for column in result.plan_of]),
        "classes": _digest(_integers(result.class_of)),
        "counters": _digest(
            *(
                part
                for name, (time_ps, value) in sorted(counters(result).items())
                for part in (name.encode(), _integers(time_ps), value.astype("<f8").tobytes())
            )
        ),
    }


def counters(result: SimulationResult) -> Counters:
    """Use of each link: times and bytes/s from then on."""
    order = np.argsort(result.counters.resource, kind="stable")
    links, first = np.unique(result.counters.resource[order], return_index=True)
    parts = np.split(order, first[1:]) if len(links) else []
    return {
        result.resources[link]: (result.counters.time_ps[part], result.counters.value[part])
        for link, part in zip(links.tolist(), parts, strict=True)
    }


def differences(result: SimulationResult, default: SimulationResult, setting: Mapping[str, Any]) -> list[str]:
    """What differs between a result and that of the default settings: nothing may.

    Ranks that do not fold have classes of their own and more counters.  What a link carries is a sum, and in
    which order it is added up depends on which links and flows there are: without folding it may differ by
    rounding.
    """
    ours, theirs = digests(result), digests(default)
    found = [key for key in ("step_ps", "times", "alone", "plans") if ours[key] != theirs[key]]
    if setting["fold"]:
        return found + [key for key in ("classes", "counters") if ours[key] != theirs[key]]
    if len(result.times) != len(result.class_of):
        found.append("classes")
    more = counters(result)
    for name, (time_ps, value) in counters(default).items():
        if name not in more or not np.array_equal(more[name][0], time_ps):
            found.append(f"times of {name}")
        elif not np.allclose(more[name][1], value, rtol=1e-12, atol=1.0):
            found.append(f"use of {name}")
    return found


def goldens() -> dict[str, dict[str, str | int]]:
    found: dict[str, dict[str, str | int]] = json.loads(PATH.read_text(encoding="utf-8"))
    return found


def _by_rank(result: SimulationResult, of_class: Sequence[str]) -> str:
    return _digest(np.array(of_class, dtype="S32")[result.class_of].tobytes())


def _digest(*parts: bytes) -> str:
    found = blake2b(digest_size=16)
    for part in parts:
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
    return found.hexdigest()


def _integers(column: np.ndarray) -> bytes:
    return column.astype("<i8").tobytes()


def _write() -> None:
    from tests.engine.ten_jobs import OTHERS  # which compares by this module

    found = {name: digests(job_of(name).play().result) for name in (*TWELVE, *catalog.names())}
    found |= {name: digests(play()) for name, play in OTHERS.items()}
    PATH.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _compare(names: Sequence[str]) -> int:
    bad = 0
    for name in names:
        job: Job = job_of(name)
        default: SimulationResult | None = None
        for setting in SETTINGS:
            began = time.perf_counter()
            result = job.play(**setting).result
            seconds = time.perf_counter() - began
            if default is None:
                default = result
                found = [key for key, value in digests(result).items() if goldens()[name][key] != value]
            else:
                found = differences(result, default, setting)
            bad += bool(found)
            said = ", ".join(found[:5]) or "same"
            print(
                f"{name:32} {setting} {seconds:7.2f} s {result.engine_events:9,} events: {said}", flush=True
            )
    return bad


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--all-settings", nargs="*", metavar="JOB")
    asked = parser.parse_args()
    if asked.write:
        _write()
    if asked.all_settings is not None:
        sys.exit(1 if _compare(asked.all_settings or [*TWELVE, *catalog.names()]) else 0)
