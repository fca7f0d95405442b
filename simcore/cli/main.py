"""The console script ``simcore``: the same commands as ``scripts/``."""

from __future__ import annotations

import typer

from simcore.cli.report_run import report
from simcore.cli.run_sim import run_sim

app = typer.Typer(
    name="simcore",
    help="Simulate a training step of a large model on a GPU cluster.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("run-sim")(run_sim)
app.command("report")(report)


def main() -> None:
    """Entry point of the console script."""
    app()
