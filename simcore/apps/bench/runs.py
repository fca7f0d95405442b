"""The command ``bench runs``: what predicting published training runs costs, case by case."""

from __future__ import annotations

import json
import sys
import time
from hashlib import sha256
from typing import Annotated, Any

import typer

from simcore.apps.options import Json
from simcore.errors import InputError, SimcoreError


def measure(path: str, every: int) -> dict[str, Any]:
    """Predict every ``every``-th case of a table of runs, in order of size, one after the other.

    Keys: ``cases`` (in the sample), ``of`` (in the table), ``cpu_s``, ``slowest[]{id, cpu_s}``, ``refused``
    and ``digest`` of all predictions, by which two versions are compared.  Errors: InputError for a bad file.
    """
    from simcore.apps.measured.runs.predict import case_key, predict_case
    from simcore.apps.measured.runs.score import case_weight, describe_rows
    from workloads.jobs.published import read_run_rows

    described, _ = describe_rows(read_run_rows(path))
    named = {case_key(case): (entry.row.id, case) for entry in described for case in entry.band.cases}
    cases = sorted(named.values(), key=lambda pair: -case_weight(pair[1]))
    sample = cases[every // 2 :: every]
    costs: list[tuple[float, str]] = []
    predicted: list[str] = []
    refused = 0
    for number, (name, case) in enumerate(sample, start=1):
        began = time.process_time()
        try:
            predicted.append(repr(predict_case(case)))
        except SimcoreError as error:
            predicted.append(str(error))
            refused += 1
        costs.append((time.process_time() - began, name))
        print(f"\r{number}/{len(sample)} ", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    slowest = sorted(costs, reverse=True)[:10]
    return {
        "cases": len(sample),
        "of": len(cases),
        "cpu_s": sum(seconds for seconds, _ in costs),
        "slowest": [{"id": name, "cpu_s": seconds} for seconds, name in slowest],
        "refused": refused,
        "digest": sha256("\n".join(predicted).encode()).hexdigest(),
    }


def bench_runs(
    table: Annotated[
        str, typer.Argument(metavar="CSV", help="Table of runs as validate.py --runs reads it.")
    ],
    every: Annotated[int, typer.Option(metavar="N", help="Predict every N-th case.")] = 15,
    as_json: Json = False,
) -> None:
    """Time the prediction of a sample of published runs, one process, without scoring them."""
    if every < 1:
        raise InputError(f"--every {every}: at least 1")
    found = measure(table, every)
    if as_json:
        print(json.dumps(found))
        return
    for row in found["slowest"]:
        print(f"{row['cpu_s']:8.2f} s  {row['id']}")
    print(
        f"{found['cases']} of {found['of']} cases ({found['refused']} refused) in {found['cpu_s']:.1f} s"
        f" of CPU time, digest {found['digest'][:16]}"
    )
