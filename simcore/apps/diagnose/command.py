"""``diagnose``: why a run is slower than it should be, from its log or a recording of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simcore.apps.run.launching import FromMegatron, FromTorchtitan
from simcore.apps.run.names import complete_cluster, complete_workload

if TYPE_CHECKING:
    from simcore.apps.run.scenario import Scenario


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
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change one thing, as for run_sim.py; repeatable."),
    ] = None,
    from_megatron: FromMegatron = None,
    from_torchtitan: FromTorchtitan = None,
    step: Annotated[int | None, typer.Option(help="Of recordings: only this ProfilerStep.")] = None,
    checks: Annotated[
        bool, typer.Option("--checks/--no-checks", help="Simulate what may explain it, or not.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Say whether a measured run is as fast as expected, what makes the difference, what to check."""
    import json

    from simcore.apps.diagnose.answer import diagnosed
    from simcore.apps.diagnose.measured import logs_of
    from simcore.apps.diagnose.show import diagnosis_lines, diagnosis_object
    from simcore.apps.progress import StageTimer
    from simcore.apps.run.launching import launch_asked, say_launch
    from simcore.apps.run.scenario import resolve_scenario
    from simcore.apps.run.settings import split_pairs
    from simcore.errors import InputError
    from workloads.jobs.launch import tells_launch

    log = logs_of(files)
    launch = launch_asked(megatron=from_megatron, torchtitan=from_torchtitan)
    if job is None and launch is None:
        if log is None or not tells_launch(log.framework, Path(log.path)):
            raise InputError(
                f"which job ran? {'The log' if log else 'A recording'} does not say: --job WORKLOAD (as"
                " run_sim.py takes it), --from-megatron or --from-torchtitan"
            )
        launch = (log.framework, log.path)
    given = split_pairs(settings or ())

    def ask(more: Mapping[str, str]) -> Scenario:
        return resolve_scenario(job, cluster=cluster, settings={**given, **more}, launch=launch)

    scenario = ask({})
    if scenario.described is not None:
        say_launch(scenario.described.launch)
    found = diagnosed(files, log, ask, StageTimer(), step=step, with_checks=checks)
    print(json.dumps(diagnosis_object(found)) if as_json else "\n".join(diagnosis_lines(found)))
