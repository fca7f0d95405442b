"""The console script ``simcore``: the same commands as ``scripts/``."""

from __future__ import annotations

import typer

from simcore.apps.bench.command import app as bench
from simcore.apps.process import collect_as_usual, one_command
from simcore.apps.replay.command import replay
from simcore.apps.run.compare_runs import compare
from simcore.apps.run.export_chakra import export
from simcore.apps.run.report_run import report
from simcore.apps.run.run_sim import run_sim

app = typer.Typer(
    name="simcore",
    help="Simulate a training step of a large model on a GPU cluster.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("run-sim")(run_sim)
app.command("report")(report)
app.command("compare")(compare)
app.command("replay")(replay)
app.command("export-chakra")(export)
app.add_typer(bench, name="bench")

# These read their own arguments, --help included, and are imported when they are called: tracing needs
# torch, which nothing else does.
_OWN_ARGUMENTS = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


@app.command("trace-workload", context_settings=_OWN_ARGUMENTS, add_help_option=False)
def trace_workload(context: typer.Context) -> None:
    """Trace a training program without a GPU and write its execution graph."""
    from workloads.tracing.drive.cli import app as tracing

    collect_as_usual()  # tensors
    tracing(context.args, prog_name="simcore trace-workload")


@app.command("validate", context_settings=_OWN_ARGUMENTS, add_help_option=False)
def validate(context: typer.Context) -> None:
    """Predicted against measured times, by family."""
    from simcore.apps.validate.command import validate as run

    collect_as_usual()  # hundreds of simulations
    raise typer.Exit(run(context.args))


@app.command("fidelity-study", context_settings=_OWN_ARGUMENTS, add_help_option=False)
def fidelity_study(context: typer.Context) -> None:
    """Fluid network against packets, packets against published figures."""
    from simcore.apps.studies.command import fidelity_study as run

    raise typer.Exit(run(context.args))


@app.command("contention-study", context_settings=_OWN_ARGUMENTS, add_help_option=False)
def contention_study(context: typer.Context) -> None:
    """Kernels beside communication: predicted slowdown against recorded and published ones."""
    from simcore.apps.studies.contention.command import contention_study as run

    raise typer.Exit(run(context.args))


@app.command("bandwidth-study", context_settings=_OWN_ARGUMENTS, add_help_option=False)
def bandwidth_study(context: typer.Context) -> None:
    """What a slower network costs traced data-parallel jobs: Echo's table 10."""
    from simcore.apps.studies.bandwidth import bandwidth_study as run

    raise typer.Exit(run(context.args))


@app.command("profile-gpu", context_settings=_OWN_ARGUMENTS, add_help_option=False)
def profile_gpu(context: typer.Context) -> None:
    """Measure the GPU that torch sees, and fit a hardware profile to it."""
    from simcore.apps.fit.profile.command import profile_gpu as run

    raise typer.Exit(run(context.args))


def main() -> None:
    """Entry point of the console script."""
    with one_command():
        app()
