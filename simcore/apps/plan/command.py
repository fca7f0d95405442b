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
    gpus: Annotated[
        str | None, typer.Option(metavar="N,N", help="Numbers of GPUs to plan for, with --gpu; no --cluster.")
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(metavar="FAMILY", help="Clusters of this profile (h800). Default: h100.")
    ] = None,
    tokens: Annotated[
        str | None, typer.Option(metavar="15T", help="Also say how long so many tokens take.")
    ] = None,
    deadline: Annotated[
        str | None, typer.Option(metavar="60d", help="Say the fewest of --gpus that train --tokens by then.")
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
    import sys
    import time

    from simcore.apps.errors import INTERRUPTED
    from simcore.apps.plan.amounts import seconds_of, tokens_of
    from simcore.apps.plan.answer import Answer, answered
    from simcore.apps.plan.asking import asked, checked_limits, clusters_asked
    from simcore.apps.plan.files import BEST, TRIALS
    from simcore.apps.plan.front import front
    from simcore.apps.plan.planning import default_folder
    from simcore.apps.plan.result import json_of
    from simcore.apps.plan.tornado import tornado as sensitivity
    from simcore.apps.progress import say
    from simcore.errors import InfeasibleError
    from simcore.planning.space import asked_axes

    began = time.perf_counter()
    checked_limits(gap, budget, spare)
    all_tokens = None if tokens is None else tokens_of(tokens)
    deadline_s = None if deadline is None else seconds_of(deadline)
    clusters = clusters_asked(cluster, gpus, gpu, deadline=deadline, tokens=tokens, tornado=tornado)
    answers: list[Answer] = []
    batch = global_batch
    for name in reversed(clusters):  # the most GPUs first: a batch that is not said is theirs
        ask = asked(
            workload, name, settings or [],
            global_batch=batch, seq=seq, framework=framework, spare=spare,
        )  # fmt: skip
        batch = ask.question.ground.base.training.global_batch
        folder = out or default_folder(ask.question)
        if len(clusters) > 1:
            folder = folder / str(name) if out else folder
            say(f"{name} ...")
        axes = asked_axes(search, ask.question.said)
        answers.insert(0, answered(ask, axes, folder, gap=gap, budget_s=budget))
        if answers[0].planned.interrupted:
            break
    shaken = sensitivity(ask, answers[0].planned) if tornado and answers[0].told else None
    sizes = front(answers, all_tokens, deadline_s)
    wall_s = time.perf_counter() - began
    if as_json:
        best = answers[0]
        shown = json_of(best.planned, best.ranked, best.told, wall_s)
        more = {} if shaken is None else {"sensitivity": shaken.as_object()}
        print(json.dumps({**shown, **more, **sizes.as_object()}))
    else:
        for answer in answers:
            print(*answer.lines(), sep="\n")
        if shaken is not None:
            print(*shaken.lines(), sep="\n")
        if len(clusters) > 1 or tokens:
            print(*sizes.lines(), sep="\n")
        print(f"{wall_s:.1f} s; {folder}: {TRIALS}, {BEST}/1.yaml and so on for run_sim.py")
    if not any(answer.planned.census.fitting for answer in answers):
        raise InfeasibleError(f"no candidate is legal and fits; {answers[-1].planned.census.advice()}")
    if answers[0].planned.interrupted:
        print("interrupted: ask again to go on from here", file=sys.stderr)
        raise typer.Exit(INTERRUPTED)
