"""``plan``: which strategies a job could run with on a cluster, which are legal, and which fit."""

from __future__ import annotations

from typing import Annotated

import typer


def plan(
    workload: Annotated[
        str,
        typer.Argument(metavar="MODEL|JOB.yaml", help="A model's name, a config.json or a described job."),
    ],
    cluster: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE", help="Cluster profile. Default: the job's, or h100-256."),
    ] = None,
    global_batch: Annotated[int | None, typer.Option(help="Samples of a step.")] = None,
    seq: Annotated[int | None, typer.Option(help="Tokens of a sample.")] = None,
    search: Annotated[
        str,
        typer.Option(
            metavar="AXES",
            help="Axes to search, with values if not all: tp,pp=1:2:4,recompute; all: every one there is."
            " Default: the usual ones that the job leaves open.",
        ),
    ] = "",
    framework: Annotated[
        str | None,
        typer.Option(metavar="PRESET", help="Search what this software runs (docs/presets.md)."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="As run_sim.py has it; repeatable.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Find the strategies of MODEL that are legal and fit on a cluster."""
    import json
    import time

    from simcore.apps.plan.asking import asked
    from simcore.apps.progress import StageTimer
    from simcore.planning.census import census
    from simcore.planning.space import asked_axes

    began = time.perf_counter()
    question = asked(
        workload, cluster, settings or [], global_batch=global_batch, seq=seq, framework=framework
    )
    axes = asked_axes(search, question.said)
    with StageTimer().stage("legality and memory"):
        found = census(question, axes)
    wall_s = time.perf_counter() - began
    if as_json:
        print(json.dumps({**found.as_object(), "wall_s": wall_s}))
        return
    for line in found.lines():
        print(line)
    print(
        f"{wall_s:.1f} s; step times and their order are not worked out yet: run_sim.py simulates any of them"
    )
