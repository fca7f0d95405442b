"""``run-sim``: simulate one training step and say how long it takes, and why."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simcore.apps.options import Edits, Emit, Force, FromMegatron, FromTorchtitan, Interference, Json
from simcore.apps.run.names import complete_cluster, complete_workload

if TYPE_CHECKING:
    from simcore.analysis import StepAnalysis
    from simcore.apps.amounts import Amount
    from simcore.apps.run.scenario import Scenario
    from simcore.rules import Rule
    from simcore.timeline import RunInfo


def run_sim(
    workload: Annotated[
        str | None,
        typer.Argument(
            autocompletion=complete_workload,
            help="Catalog name, graph folder, model name, Hugging Face config.json, or YAML file with"
            " workload (or model, parallel, training, software), cluster, network, seed and set."
            " Default: gpt-175b-pp12-tp8-dp1.",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            autocompletion=complete_cluster,
            help="Cluster profile. Default: h800-96, of a described job h100-256.",
        ),
    ] = None,
    network: Annotated[
        str | None,
        typer.Option(
            metavar="alphabeta|fluid|packet",
            help="Network model; packet is for small jobs: every rank and packet. Default: fluid.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change one thing; repeatable. gpu.*, cluster.*, link.<name>.*, workload.kernels="
            "unfused|megatron|flash|cudnn, workload.fp32_math=ieee|tf32,"
            " workload.kernel_times=FILE.csv (measured), nccl.algorithm, nccl.protocol, nccl.min_channels,"
            " nccl.max_channels, nccl.buffer_bytes, rank.<n>.gpu.clock and the like,"
            " node.<n>.extra_latency_s, noise.sigma, gpu.conditions=sustained|cool, memory.check=refuse|warn,"
            " network.transport=infiniband|roce,"
            " network.routing=spread|ecmp, network.max_events (the last three for --network packet).",
        ),
    ] = None,
    edits: Edits = None,
    rules: Annotated[
        list[Path] | None,
        typer.Option(
            "--rules",
            metavar="FILE.py",
            help="What your framework does and this program does not know (docs/rules.md); repeatable."
            " The file is run.",
        ),
    ] = None,
    interference: Interference = "shared",
    no_fold: Annotated[
        bool, typer.Option("--no-fold", help="Simulate every rank by itself. The result is the same.")
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Seed of anything random. Default: 0.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder. Default: one of runs, named by the question.")
    ] = None,
    show_schedule: Annotated[
        bool, typer.Option("--show-schedule", help="Print a described job's pipeline schedule and stop.")
    ] = False,
    memory_only: Annotated[
        bool, typer.Option("--memory-only", help="Say whether it fits the GPUs, and stop.")
    ] = False,
    memory_snapshot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="With --memory-only: the fullest stage for PyTorch's memory viewer."
        ),
    ] = None,
    memory_picture: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --memory-only: what stages hold over the step, by category."),
    ] = None,
    steady_state: Annotated[
        bool,
        typer.Option(
            "--steady-state",
            help="Described jobs: simulate two steps of few microbatches, continue in a straight line.",
        ),
    ] = False,
    force: Force = False,
    from_megatron: FromMegatron = None,
    from_torchtitan: FromTorchtitan = None,
    emit: Emit = None,
    perfetto: Annotated[
        bool, typer.Option("--perfetto/--no-perfetto", help="Also write a file for Perfetto, or not.")
    ] = True,
    page: Annotated[
        bool, typer.Option("--report/--no-report", help="Also write report.html, a page, or not.")
    ] = True,
    tornado: Annotated[
        bool,
        typer.Option("--tornado", help="Also: what a tenth less and more of each resource would change."),
    ] = False,
    tokens: Annotated[
        str | None,
        typer.Option(metavar="15T", help="Also: GPU-hours of so many tokens."),
    ] = None,
    samples: Annotated[
        str | None,
        typer.Option(metavar="4.2B", help="Also: GPU-hours of so many samples."),
    ] = None,
    prices: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|aws|azure|gcp",
            help="With --tokens or --samples: and what they cost (docs/planning.md).",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Simulate one training step of WORKLOAD on a cluster."""
    # Imported here: --help and usage errors answer at once.
    import json
    import time

    from simcore.apps.amounts import amount_of
    from simcore.apps.progress import StageTimer
    from simcore.apps.run.launching import launch_asked, say_launch
    from simcore.apps.run.loading import chosen_interference, schedule_text
    from simcore.apps.run.scenario import resolve_scenario
    from simcore.apps.run.settings import split_pairs
    from simcore.errors import InputError

    began = time.perf_counter()
    amount = amount_of(tokens, samples)
    if prices and amount is None:
        raise InputError("--prices needs --tokens or --samples: of what it is the price, such as --tokens 1T")
    stages = StageTimer()
    learned = chosen_interference(interference)
    scenario = resolve_scenario(
        workload,
        cluster=cluster,
        network=network,
        seed=seed,
        settings=split_pairs(settings or ()),
        force=force,
        launch=launch_asked(megatron=from_megatron, torchtitan=from_torchtitan),
    )
    if scenario.described is not None:
        say_launch(scenario.described.launch)
    if show_schedule:
        print(schedule_text(scenario, as_json=as_json))
        return
    if (memory_snapshot or memory_picture) and not memory_only:
        raise InputError("--memory-snapshot and --memory-picture belong to --memory-only: add it")
    if memory_only:
        from simcore.apps.run.fitting import memory_answer

        lines, answer = memory_answer(scenario, snapshot=memory_snapshot, picture=memory_picture)
        print(json.dumps(answer) if as_json else "\n".join(lines))
        return
    _check_cost(scenario, amount, prices)
    from simcore.apps.run.show import print_run, run_object
    from simcore.apps.run.simulation import run_scenario

    own: tuple[Rule, ...] = ()
    if rules:
        from simcore.rules import load_rules

        own = tuple(one for file in rules for one in load_rules(file))

    if own and steady_state:
        raise InputError("--steady-state continues a shorter step, which rules would see: leave one out")
    run = partial(
        run_scenario,
        fold=not no_fold, edits=edits or (), rules=own, learned=learned, perfetto=perfetto, page=page,
        tornado=tornado, emit=emit or "", advise=True, meanwhile=None if as_json else _tables,
    )  # fmt: skip
    continued = None
    if steady_state:
        from simcore.apps.run.steady_state import Continued, run_steady_state

        found = run_steady_state(scenario, out, stages, run)
        continued = found if isinstance(found, Continued) else None
        outcome = found.outcome if isinstance(found, Continued) else found
    else:
        outcome = run(scenario, out, stages)
    cost = None
    if amount is not None:
        from simcore.apps.prices import cost_of_run

        cost = cost_of_run(outcome.info, outcome.analysis.throughput.tokens_per_s, amount, prices)
    wall_s = time.perf_counter() - began
    if as_json:
        print(json.dumps(run_object(outcome, wall_s, cost, continued)))
    else:
        print_run(outcome, wall_s, cost, continued)


def _check_cost(scenario: Scenario, amount: Amount | None, prices: str | None) -> None:
    """Before the run: an amount that the job does not count, and a GPU without a price, are errors."""
    if amount is not None:
        from simcore.apps.run.loading import loaded_cluster
        from simcore.units import what_counts

        _, job = loaded_cluster(scenario)
        if job is not None:
            amount.of(what_counts(job.training.seq), job.training.seq)
    if prices:
        from simcore.apps.prices import read_prices
        from simcore.hardware import load_cluster

        on = load_cluster(scenario.cluster, scenario.settings.hardware, force=scenario.force)
        read_prices(prices, (on,)).gpu_hour(on)


def _tables(info: RunInfo, analysis: StepAnalysis) -> str:
    """A run's summary."""
    from simcore.apps.output import summary_text

    return summary_text(info, analysis)
