"""``run-sim``: simulate one training step and say how long it takes, and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simcore.apps.run.launching import Emit, FromMegatron, FromTorchtitan
from simcore.apps.run.names import complete_cluster, complete_workload

if TYPE_CHECKING:
    from simcore.analysis import StepAnalysis
    from simcore.apps.progress import StageTimer
    from simcore.apps.run.question import RunQuestion
    from simcore.apps.run.scenario import Scenario
    from simcore.apps.run.simulation import FinishedRun
    from simcore.rules import Rule
    from simcore.timeline import RunInfo

InterferenceOption = Annotated[
    str,
    typer.Option(
        metavar="shared|learned[:FILE]",
        help="How communication slows kernels: SMs and HBM that they share, or a function learned from"
        " traces (default file: the one that comes with the project; scripts/calibrate.py makes others).",
    ),
]
ForceOption = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Take numbers of hardware that none has (the run says so); write over the answer to another"
        " question.",
    ),
]


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
    edits: Annotated[
        list[str] | None,
        typer.Option(
            "--edit",
            metavar="KEY=VALUE",
            help="What if: change the workload; repeatable, in the order given. Keys: docs/what-if.md.",
        ),
    ] = None,
    rules: Annotated[
        list[Path] | None,
        typer.Option(
            "--rules",
            metavar="FILE.py",
            help="What your framework does and this program does not know (docs/rules.md); repeatable."
            " The file is run.",
        ),
    ] = None,
    interference: InterferenceOption = "shared",
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
    force: ForceOption = False,
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
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
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
    if amount is not None:
        from simcore.apps.run.loading import loaded_cluster
        from simcore.units import what_counts

        _, job = loaded_cluster(scenario)
        if job is not None:  # what cannot be is known before the run
            amount.of(what_counts(job.training.seq), job.training.seq)
    if prices:
        from simcore.apps.prices import read_prices
        from simcore.hardware import load_cluster

        on = load_cluster(scenario.cluster, scenario.settings.hardware, force=scenario.force)
        read_prices(prices, (on,)).gpu_hour(on)  # a GPU without a price is known before the run
    from simcore.apps.run.simulation import run_scenario

    own: tuple[Rule, ...] = ()
    if rules:
        from simcore.rules import load_rules

        own = tuple(one for file in rules for one in load_rules(file))

    if own and steady_state:
        raise InputError("--steady-state continues a shorter step, which rules would see: leave one out")

    def run(
        scenario: Scenario, out: Path | None, stages: StageTimer, question: RunQuestion | None = None
    ) -> FinishedRun:
        return run_scenario(
            scenario, out, stages,
            fold=not no_fold, edits=edits or (), rules=own, learned=learned, perfetto=perfetto, page=page,
            tornado=tornado, emit=emit or "", advise=True, question=question,
            meanwhile=None if as_json else _tables,
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
        from simcore.report import json_object
        from simcore.timeline.schema import TIMELINE_FILE

        path = outcome.run_dir / TIMELINE_FILE
        shown = json_object(outcome.info, outcome.analysis, path, wall_s)
        if continued is not None:
            shown = {**continued.shown, "wall_s": wall_s}
        if cost is not None:
            shown["cost"] = cost.as_object()
        if outcome.info.tornado:
            shown["tornado"] = [one.model_dump() for one in outcome.info.tornado]
        if outcome.rules:
            from simcore.apps.run.ruled import rules_object

            shown["rules"] = rules_object(outcome.rules)
        if outcome.edits:
            shown["edits"] = [change.as_object() for change in outcome.edits]
        print(json.dumps(shown))
    else:
        _print_finished(outcome, wall_s)
        if cost is not None:
            print(cost.line())
        if continued is not None:
            print(continued.note)
        if outcome.info.tornado:
            from simcore.apps.run.tornado import tornado_lines

            print("\n".join(tornado_lines(outcome.info.tornado, outcome.analysis.step_s)))
        if outcome.edits:
            from simcore.apps.output import print_wide
            from simcore.apps.run.edits import edit_table

            print_wide(edit_table(outcome.edits))
        if outcome.rules:
            from simcore.apps.run.ruled import rules_lines

            print("\n".join(rules_lines(outcome.rules)))


def _tables(info: RunInfo, analysis: StepAnalysis) -> str:
    """A run's summary."""
    from simcore.apps.output import summary_text

    return summary_text(info, analysis)


def _print_finished(outcome: FinishedRun, wall_s: float) -> None:
    """A run's summary, and where its files are."""
    from simcore.apps.output import answered_line, left_out_notes, print_summary
    from simcore.apps.progress import as_started
    from simcore.apps.run.beside import PERFETTO_FILE
    from simcore.report.page import PAGE_FILE

    run_dir = outcome.run_dir
    page = run_dir / PAGE_FILE
    ranks = outcome.perfetto_ranks
    shown = ", ".join(map(str, ranks[:16])) + (", ..." if len(ranks) > 16 else "")
    file = f"{run_dir / PERFETTO_FILE}, rank{'s' if len(ranks) > 1 else ''} {shown}"
    notes = (
        outcome.info.assumptions[0],
        f"simulated in {wall_s:.1f} s: {answered_line(outcome.answered, outcome.info.engine_events)}",
        f"run folder: {run_dir} (timeline.parquet, counters.parquet, rank_classes.parquet, run.json)",
        *([f"page: {page}"] if page.is_file() else ()),
        *([f"Perfetto (ui.perfetto.dev): {file}"] if ranks else ()),
        *left_out_notes(outcome.perfetto_left_out),
        f"{'other ranks' if ranks else 'Perfetto'}: python scripts/report.py {run_dir} --perfetto FILE"
        " --ranks 0,1,2 (--host: host lanes)",
    )
    print_summary(outcome.tables, map(as_started, notes))
