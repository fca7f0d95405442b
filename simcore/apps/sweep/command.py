"""``sweep``: every combination of settings, a row for each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simcore.apps.options import Json, Prices, Ray


def sweep(
    spec: Annotated[
        Path,
        typer.Argument(
            metavar="SPEC.yaml",
            help="A job's file with grid (values by key), cases, or both: docs/sweeps.md.",
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="Folder. Default: sweeps/<name of SPEC>.")] = None,
    shard: Annotated[
        str, typer.Option(metavar="I/N", help="Only part I of N, from 1: for batch systems, with one --out.")
    ] = "1/1",
    merge: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FOLDER|FILE",
            help="Take over what another sweep or plan has simulated, and simulate nothing; repeatable.",
        ),
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes. Default: all cores.")] = None,
    ray: Ray = None,
    limit: Annotated[
        float, typer.Option("--case-limit", metavar="SECONDS", help="A case that needs longer has failed.")
    ] = 3600.0,
    prices: Prices = None,
    retry: Annotated[bool, typer.Option("--retry", help="Try again what has failed.")] = False,
    as_json: Json = False,
) -> None:
    """Simulate every case of SPEC; asked again, what is done is not done again."""
    import json
    import sys
    import time

    from simcore.apps.errors import INTERRUPTED
    from simcore.apps.process import collect_for_long
    from simcore.apps.progress import say
    from simcore.apps.run.identity import outcome_version
    from simcore.apps.sweep.costs import rates
    from simcore.apps.sweep.files import merge as take_over
    from simcore.apps.sweep.files import part_of, sweep_folder, write_rows
    from simcore.apps.sweep.spec import sweep_spec
    from simcore.apps.sweep.sweeping import asked, take
    from simcore.apps.sweep.sweeping import sweep as simulate
    from simcore.apps.sweep.table import counts, json_of, lines, reasons
    from simcore.apps.workers import chosen_workers
    from simcore.errors import InfeasibleError, InputError

    began = time.perf_counter()
    collect_for_long()
    if not 0 < limit <= 1e6:
        raise InputError(f"--case-limit {limit:g}: seconds, more than 0 and at most 1e6")
    part = part_of(shard)
    asking = sweep_spec(spec)
    found = asked(asking, part)
    if found.cases and counts(found)["refused"] == len(found.cases):
        raise InputError(f"{spec}: all cases are refused: {next(iter(reasons(found, 'refused')))}")
    priced = rates(asking, found, prices)  # what has no price is known at once
    folder = sweep_folder(spec, out, part)
    store = folder.store()
    taken = sum(take_over(store, other) for other in merge or ())
    take(found, store, retry=retry)
    if merge:
        say(f"{taken:,} outcomes are new")
    else:
        with chosen_workers(ray, outcome_version, workers) as chosen:
            simulate(asking, found, store, chosen, limit_s=limit)
    write_rows(folder.rows, asking, found, priced)
    wall_s = time.perf_counter() - began
    if as_json:
        files = {"rows": folder.rows, "store": folder.store_file}
        print(json.dumps(json_of(found, priced, files, wall_s)))
    else:
        print(*lines(found, priced), sep="\n")
        print(f"{wall_s:.1f} s; {folder.rows}: all rows")
    if found.interrupted:
        print("interrupted: what is done is kept; ask again to go on", file=sys.stderr)
        raise typer.Exit(INTERRUPTED)
    if found.cases and counts(found)["out_of_memory"] == len(found.cases):
        raise InfeasibleError("no case fits in the memory of its GPUs")
