"""``compare``: two runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simcore.apps.errors import reported_errors
from simcore.apps.process import one_command


def compare(
    run_a: Annotated[Path, typer.Argument(help="Run folder, the first.")],
    run_b: Annotated[Path, typer.Argument(help="Run folder, the second.")],
    top: Annotated[int, typer.Option(min=1, help="Rows in the table of ops.")] = 12,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Compare two runs: inputs that differ, step time, breakdown, what explains it, ops, stages."""
    with reported_errors():
        import json

        from simcore.analysis.comparison import compare_runs
        from simcore.apps.output import print_wide
        from simcore.report.comparison import comparison_object, comparison_tables
        from simcore.timeline import Timeline

        comparison = compare_runs(*(Timeline.open(folder) for folder in (run_a, run_b)))
        if as_json:
            print(json.dumps(comparison_object(comparison)))
        else:
            print_wide(comparison_tables(comparison, (str(run_a), str(run_b)), top=top))


def main() -> None:
    """Run the command alone (``scripts/compare.py``)."""
    with one_command():
        typer.run(compare)
