"""``plan``: which strategy is fastest on a cluster, with a proof."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simcore.apps.options import Emit, FromMegatron, FromTorchtitan, Json, Prices, Ray, Settings

if TYPE_CHECKING:
    from simcore.apps.plan.answer import Answer
    from simcore.apps.plan.front import Front
    from simcore.apps.plan.tornado import Tornado
    from simcore.apps.prices import PriceList


def plan(
    workload: Annotated[
        str | None,
        typer.Argument(metavar="MODEL|JOB.yaml", help="A model's name, a config.json or a described job."),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE", help="Cluster profile. Default: the job's, or h100-256."),
    ] = None,
    gpus: Annotated[
        str | None, typer.Option(metavar="N,N", help="Numbers of GPUs to plan for, with --gpu; no --cluster.")
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(metavar="FAMILY,...", help="Clusters of these profiles (h100,h800). Default: h100."),
    ] = None,
    tokens: Annotated[
        str | None, typer.Option(metavar="15T", help="Also say how long so many tokens take.")
    ] = None,
    samples: Annotated[
        str | None, typer.Option(metavar="4.2B", help="Also say how long so many samples take.")
    ] = None,
    deadline: Annotated[
        str | None,
        typer.Option(
            metavar="60d", help="Say the fewest of --gpus that train --tokens or --samples by then."
        ),
    ] = None,
    objective: Annotated[
        str,
        typer.Option(
            metavar="time|cost|gpus",
            help="Which of several clusters is best: the quickest, the cheapest per token, the fewest GPUs.",
        ),
    ] = "time",
    prices: Prices = None,
    global_batch: Annotated[int | None, typer.Option(help="Samples of a step.")] = None,
    seq: Annotated[int | None, typer.Option(help="Tokens of a sample.")] = None,
    search: Annotated[
        str,
        typer.Option(
            metavar="AXES",
            help="Axes to search, with values if not all: tp,pp=1:2:4,recompute; usual: those of the default,"
            " as in usual,recompute_layers; all: every one there is."
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
    polish: Annotated[
        bool | None,
        typer.Option(
            "--polish/--no-polish",
            help="Move the best along finer axes, too, or leave them as the search found them. Default: with"
            " --search, which says all that is to change, they are left.",
        ),
    ] = None,
    tornado: Annotated[
        bool,
        typer.Option("--tornado", help="Also: the best on other hardware, and one step along each axis."),
    ] = False,
    from_megatron: FromMegatron = None,
    from_torchtitan: FromTorchtitan = None,
    emit: Emit = None,
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option(help="Folder. Default: plans/<model>-<cluster>.")] = None,
    ray: Ray = None,
    as_json: Json = False,
) -> None:
    """Find the fastest strategy of MODEL on a cluster, and how much faster any other can be at most."""
    import json
    import sys
    import time

    from simcore.apps.amounts import amount_of, seconds_of
    from simcore.apps.errors import INTERRUPTED
    from simcore.apps.plan.answer import answered
    from simcore.apps.plan.asking import asked_of_each, checked_limits, checked_objective, clusters_asked
    from simcore.apps.plan.files import BEST, TRIALS
    from simcore.apps.plan.front import front
    from simcore.apps.plan.picture import PICTURE, draw
    from simcore.apps.plan.planning import default_folder
    from simcore.apps.plan.result import json_of
    from simcore.apps.plan.table import in_columns
    from simcore.apps.plan.tornado import tornado as sensitivity
    from simcore.apps.prices import read_prices
    from simcore.apps.progress import as_started, say
    from simcore.apps.run.launching import launch_asked
    from simcore.errors import InfeasibleError
    from simcore.planning.space import asked_axes

    launch = launch_asked(megatron=from_megatron, torchtitan=from_torchtitan)
    if emit:
        from workloads.jobs.launch import dialect_of

        dialect_of(emit)
    began = time.perf_counter()
    checked_limits(gap, budget, spare)
    checked_objective(objective, priced=prices is not None)
    amount = amount_of(tokens, samples)
    deadline_s = None if deadline is None else seconds_of(deadline)
    clusters = clusters_asked(cluster, gpus, gpu, deadline=deadline, amount=amount, tornado=tornado)
    requests = asked_of_each(
        clusters, amount, global_batch, workload=workload, settings=settings or [], launch=launch,
        seq=seq, framework=framework, spare=spare,
    )  # fmt: skip
    hardware = [ask.question.cluster for ask in requests]
    priced = None if prices is None else read_prices(prices, hardware)
    if priced is not None:
        for one in hardware:  # what has no price is known at once
            priced.gpu_hour(one)
    unpolished = "as asked" if polish is False else ""
    if polish is None and search:
        unpolished = "--search says all that changes (--polish moves the best along finer axes, too)"
    answers: list[Answer] = []
    for name, ask in zip(reversed(clusters), reversed(requests), strict=True):
        folder = out or default_folder(ask.question)
        if len(clusters) > 1:
            folder = folder / str(name) if out else folder
            say(f"{name} ...")
        lists = bool(ask.question.ground.classes)
        axes = asked_axes(search, ask.kept, lists=lists)
        found = answered(
            ask, axes, folder,
            gap=gap, budget_s=budget, emit=emit or "", unpolished=unpolished, ray=ray,
        )  # fmt: skip
        answers.insert(0, found)
        if answers[0].planned.interrupted:
            break
    shaken = sensitivity(ask, answers[0].planned, answers[0].ranked) if tornado and answers[0].best else None
    sizes = front(answers, amount, deadline_s, objective, priced)
    drawn = [draw(answer, sizes) for answer in answers if answer.best]
    wall_s = time.perf_counter() - began
    if as_json:
        best = next((one for one in answers if sizes.best and one.cluster == sizes.best.cluster), answers[0])
        shown = json_of(best.planned, best.ranked, best.told, best.default_refused, wall_s)
        more = {} if shaken is None else {"sensitivity": shaken.as_object()}
        print(json.dumps({**shown, "unpolished": best.unpolished, **more, **sizes.as_object()}))
    else:
        written = [TRIALS, *([PICTURE] if any(drawn) else [])]
        written += [as_started(f"{BEST}/1.yaml and so on for run_sim.py")] if drawn else []
        several = len(clusters) > 1
        told = _lines(answers, shaken, sizes if several or amount else None, priced, several=several)
        print(in_columns(told))
        print(f"{wall_s:.1f} s; {folder}: {', '.join(written)}")
    if not any(answer.planned.census.fitting for answer in answers):
        raise InfeasibleError(f"no candidate is legal and fits; {answers[-1].planned.census.advice()}")
    if answers[0].planned.interrupted:
        print("interrupted: ask again to go on from here", file=sys.stderr)
        raise typer.Exit(INTERRUPTED)


def _lines(
    answers: Sequence[Answer], shaken: Tornado | None, sizes: Front | None, priced: PriceList | None,
    *, several: bool,
) -> list[str]:  # fmt: skip
    """For the terminal: an answer for each cluster, named if ``several``, and what was asked beside."""
    lines = []
    for answer in answers:
        lines += ["", f"{answer.cluster}:"] if several else []
        lines += answer.lines(priced)
    lines += [""] if several else []
    lines += shaken.lines() if shaken is not None else []
    lines += sizes.lines() if sizes is not None else []
    lines += [priced.line()] if priced is not None else []
    return lines
