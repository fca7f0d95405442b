"""``replay``: recorded profiler traces played back by the engine, step by step beside the recording."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simcore.cli.errors import reported_errors


def replay(
    traces: Annotated[list[Path], typer.Argument(help="Trace files (.json, .json.gz, .tar.gz) or folders.")],
    step: Annotated[int | None, typer.Option(help="Only this step (its ProfilerStep number).")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Go on without files that are bad.")] = False,
    gaps: Annotated[
        str, typer.Option(help="Launch latencies and gaps between kernels: 'recorded', or 'typical' for all.")
    ] = "recorded",
    edits: Annotated[
        list[str] | None,
        typer.Option(
            "--edit",
            metavar="KEY=VALUE",
            help="What if: change the graph; repeatable, in the order given. Keys: docs/what-if.md.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Replay recorded PyTorch profiler traces and compare with the recording."""
    with reported_errors():
        import json

        from simcore.cli.edits import edit_recording, edit_table
        from simcore.cli.output import print_wide
        from simcore.replay import replay_job
        from simcore.replay.show import replay_object, replay_tables
        from workloads.imports import import_traces

        job = import_traces(traces, skip_bad=skip_bad, gaps=gaps)
        job, changes = edit_recording(job, edits or (), step)
        steps = replay_job(job, step)
        if as_json:
            shown = {**replay_object(job, steps), "edits": [change.as_object() for change in changes]}
            print(json.dumps(shown))
        else:
            print_wide(replay_tables(job, steps))
            if changes:
                print_wide(edit_table(changes))


def main() -> None:
    """Run the command alone (``scripts/replay.py``)."""
    typer.run(replay)
