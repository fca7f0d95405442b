"""The console script ``simcore``: the same commands as ``scripts/``."""

from __future__ import annotations

from typing import Annotated

import typer

from simcore import __version__
from simcore.apps.bench.command import app as bench
from simcore.apps.diagnose.command import diagnose
from simcore.apps.errors import as_app
from simcore.apps.fit.command import calibrate
from simcore.apps.fit.profile.command import profile_gpu
from simcore.apps.plan.command import plan
from simcore.apps.process import collect_as_usual
from simcore.apps.replay.command import replay
from simcore.apps.run.finished import compare, export_chakra, report
from simcore.apps.run.names import list_names
from simcore.apps.run.run_sim import run_sim
from simcore.apps.studies.bandwidth import bandwidth_study
from simcore.apps.studies.codesign import codesign
from simcore.apps.studies.command import fidelity_study
from simcore.apps.studies.contention.command import contention_study
from simcore.apps.studies.forecast import forecast
from simcore.apps.sweep.command import sweep
from simcore.apps.validate.command import validate

app = typer.Typer(
    name="simcore",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for command in (
    run_sim, plan, sweep, report, compare, replay, diagnose, export_chakra, validate, calibrate,
    fidelity_study, contention_study, bandwidth_study, codesign, forecast, profile_gpu,
):  # fmt: skip
    app.command()(command)
app.command("list")(list_names)
app.add_typer(bench, name="bench")


def _say_version(asked: bool) -> None:
    if asked:
        print(f"simcore {__version__}")
        raise typer.Exit


@app.callback()
def simcore(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Say it and exit.")
    ] = False,
) -> None:
    """Simulate a training step of a large model on a GPU cluster."""


# Reads its own arguments, --help included, and is imported when it is called: it needs torch.
@app.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    add_help_option=False,
)
def trace_workload(context: typer.Context) -> None:
    """Trace a training program without a GPU and write its execution graph."""
    from workloads.tracing.drive.cli import app as tracing

    collect_as_usual()  # tensors
    as_app(tracing)(context.args, prog_name="simcore trace-workload")


as_app(app)
