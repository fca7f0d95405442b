"""``diagnose``: why a run is slower than it should be, from its log or a recording of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simcore.apps.options import FromMegatron, FromTorchtitan, Json, Settings
from simcore.apps.run.names import complete_cluster, complete_workload


def diagnose(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="LOG|TRACE...",
            help="A training log (Megatron-LM, torchtitan, DeepSpeed, Trainer, NeMo), or recordings"
            " of its ranks as replay.py takes them.",
        ),
    ],
    job: Annotated[
        str | None,
        typer.Option(
            "--job",
            metavar="WORKLOAD",
            autocompletion=complete_workload,
            help="What ran, as run_sim.py takes it. Default: the launch that the log tells.",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE", autocompletion=complete_cluster, help="What it ran on."),
    ] = None,
    settings: Settings = None,
    from_megatron: FromMegatron = None,
    from_torchtitan: FromTorchtitan = None,
    step: Annotated[int | None, typer.Option(help="Of recordings: only this ProfilerStep.")] = None,
    checks: Annotated[
        bool, typer.Option("--checks/--no-checks", help="Simulate what may explain it, or not.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Say whether a measured run is as fast as expected, what makes the difference, what to check."""
    import json

    from simcore.apps.diagnose.answer import diagnosed
    from simcore.apps.diagnose.measured import launch_of_log, logs_of
    from simcore.apps.diagnose.show import diagnosis_lines, diagnosis_object
    from simcore.apps.progress import StageTimer
    from simcore.apps.run.launching import launch_asked, say_launch
    from simcore.apps.run.scenario import resolve_scenario
    from simcore.apps.run.settings import split_pairs

    log = logs_of(files)
    launch = launch_asked(megatron=from_megatron, torchtitan=from_torchtitan)
    if job is None and launch is None:
        launch = launch_of_log(log)
    scenario = resolve_scenario(job, cluster=cluster, settings=split_pairs(settings or ()), launch=launch)
    if scenario.described is not None:
        say_launch(scenario.described.launch)
    found = diagnosed(files, log, scenario, StageTimer(), step=step, with_checks=checks)
    print(json.dumps(diagnosis_object(found)) if as_json else "\n".join(diagnosis_lines(found)))
