"""The console script ``simcore``: the same commands as ``scripts/``, each imported when it is asked for."""

from __future__ import annotations

from collections import UserDict
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from simcore import __version__
from simcore.apps.errors import as_app
from simcore.apps.process import collect_as_usual

#: Where each command, or app of several, is.
PLACES = {
    "run-sim": "run.run_sim:run_sim",
    "plan": "plan.command:plan",
    "sweep": "sweep.command:sweep",
    "report": "run.finished:report",
    "compare": "run.finished:compare",
    "replay": "replay.command:replay",
    "diagnose": "diagnose.command:diagnose",
    "export-chakra": "run.finished:export_chakra",
    "validate": "validate.command:validate",
    "calibrate": "fit.command:calibrate",
    "fidelity-study": "studies.command:fidelity_study",
    "contention-study": "studies.contention.command:contention_study",
    "bandwidth-study": "studies.bandwidth:bandwidth_study",
    "codesign": "studies.codesign:codesign",
    "forecast": "studies.forecast:forecast",
    "profile-gpu": "fit.profile.command:profile_gpu",
    "list": "run.names:list_names",
    "trace-workload": "main:tracing",
    "bench": "bench.command:app",
}


class _Commands(UserDict[str, Any]):
    """Commands by name, of places at first; to import all takes as long as a small job."""

    def __getitem__(self, name: str) -> Any:
        found = super().__getitem__(name)
        if isinstance(found, str):
            module, _, of = found.partition(":")
            found = typer.main.get_command(as_app(getattr(import_module(f"simcore.apps.{module}"), of)))
            found.name = name
            self[name] = found
        return found


class _Group(TyperGroup):
    """All commands."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = _Commands(PLACES)


app = typer.Typer(name="simcore", cls=_Group, no_args_is_help=True, pretty_exceptions_enable=False)
tracing = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


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
@tracing.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    add_help_option=False,
)
def trace_workload(context: typer.Context) -> None:
    """Trace a training program without a GPU and write its execution graph."""
    from workloads.tracing.drive.cli import app as program

    collect_as_usual()  # tensors
    as_app(program)(context.args, prog_name="simcore trace-workload")
