"""``plan``: which strategy is fastest on a cluster, with a proof."""

from __future__ import annotations

from pathlib import Path
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
            " Default: those of docs/planning.md that the job leaves open.",
        ),
    ] = "",
    framework: Annotated[
        str | None,
        typer.Option(metavar="PRESET", help="Search what this software runs (docs/presets.md)."),
    ] = None,
    gap: Annotated[
        float, typer.Option(help="Stop when no other candidate can be faster by more than this share.")
    ] = 0.02,
    budget: Annotated[float, typer.Option(metavar="SECONDS", help="Stop after this time.")] = 600.0,
    spare: Annotated[
        float, typer.Option(metavar="SHARE", help="Of a GPU's memory that is to stay free, such as 0.06.")
    ] = 0.0,
    tornado: Annotated[
        bool,
        typer.Option("--tornado", help="Also: the best on other hardware, and one step along each axis."),
    ] = False,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="As run_sim.py has it; repeatable.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder. Default: plans/<model>-<cluster>.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Find the fastest strategy of MODEL on a cluster, and how much faster any other can be at most."""
    import json
    import time

    from simcore.apps.plan.asking import asked, checked_limits
    from simcore.apps.plan.files import BEST, JOURNAL, TRIALS, write_best, write_trials
    from simcore.apps.plan.journal import Journal
    from simcore.apps.plan.planning import default_folder, planned
    from simcore.apps.plan.result import explained, json_of, proof, table, ties, why
    from simcore.apps.plan.tornado import tornado as sensitivity
    from simcore.errors import InfeasibleError
    from simcore.files import whole_folder
    from simcore.planning.space import asked_axes

    began = time.perf_counter()
    checked_limits(gap, budget, spare)
    ask = asked(
        workload, cluster, settings or [],
        global_batch=global_batch, seq=seq, framework=framework, spare=spare,
    )  # fmt: skip
    axes = asked_axes(search, ask.question.said)
    folder = out or default_folder(ask.question)
    folder.mkdir(parents=True, exist_ok=True)
    found = planned(
        ask.question, axes, gap=gap, budget_s=budget, journal=Journal(folder / JOURNAL, ask.question)
    )
    write_trials(folder / TRIALS, found)
    ranked = found.search.ranked() if found.search is not None else []
    told = []
    if ranked:
        known = [found.default] if found.default is not None and found.default.step_s is not None else []
        with whole_folder(folder / BEST, "strategies") as fresh:
            write_best(fresh, found, [*ranked[:5], *known], ask.cluster, ask.given)
        told.append(explained(ranked[0], folder / BEST / "1.yaml", ask.cluster))
        if known:
            told.append(explained(known[0], folder / BEST / f"{len(ranked[:5]) + 1}.yaml", ask.cluster))
    shaken = sensitivity(ask, found) if tornado and told else None
    wall_s = time.perf_counter() - began
    if as_json:
        shown = json_of(found, ranked, told, wall_s)
        print(json.dumps(shown if shaken is None else {**shown, "sensitivity": shaken.as_object()}))
    else:
        for line in found.census.lines():
            print(line)
        if told:
            print(*table(found, ranked, told[0]), proof(found), ties(found, ranked).line(ranked), sep="\n")
        if len(told) > 1:
            print(why(told[0], told[1]))
        if shaken is not None:
            print(*shaken.lines(), sep="\n")
        print(f"{wall_s:.1f} s; {folder}: {TRIALS}, {BEST}/1.yaml and so on for run_sim.py, {JOURNAL}")
    if not found.census.fitting:
        raise InfeasibleError("no candidate is legal and fits: more GPUs, another --search, fewer samples")
