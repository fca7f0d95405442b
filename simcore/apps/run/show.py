"""What ``run-sim`` says of a run that has ended: one object, or a summary and where its files are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simcore.apps.prices import RunCost
    from simcore.apps.run.simulation import FinishedRun
    from simcore.apps.run.steady_state import Continued


def run_object(
    outcome: FinishedRun, wall_s: float, cost: RunCost | None, continued: Continued | None
) -> dict[str, Any]:
    """What ``--json`` prints."""
    from simcore.report import json_object
    from simcore.timeline.schema import TIMELINE_FILE

    shown = json_object(outcome.info, outcome.analysis, outcome.run_dir / TIMELINE_FILE, wall_s)
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
    return shown


def print_run(outcome: FinishedRun, wall_s: float, cost: RunCost | None, continued: Continued | None) -> None:
    """Print the summary, where the run's files are, and what else was asked."""
    from simcore.apps.output import print_summary
    from simcore.apps.progress import as_started

    print_summary(outcome.tables, map(as_started, _notes(outcome, wall_s)))
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


def _notes(outcome: FinishedRun, wall_s: float) -> tuple[str, ...]:
    from simcore.apps.output import answered_line, left_out_notes
    from simcore.apps.run.beside import PERFETTO_FILE
    from simcore.report.page import PAGE_FILE

    run_dir = outcome.run_dir
    page = run_dir / PAGE_FILE
    ranks = outcome.perfetto_ranks
    shown = ", ".join(map(str, ranks[:16])) + (", ..." if len(ranks) > 16 else "")
    file = f"{run_dir / PERFETTO_FILE}, rank{'s' if len(ranks) > 1 else ''} {shown}"
    return (
        outcome.info.assumptions[0],
        f"simulated in {wall_s:.1f} s: {answered_line(outcome.answered, outcome.info.engine_events)}",
        f"run folder: {run_dir} (timeline.parquet, counters.parquet, rank_classes.parquet, run.json)",
        *([f"page: {page}"] if page.is_file() else ()),
        *([f"Perfetto (ui.perfetto.dev): {file}"] if ranks else ()),
        *left_out_notes(outcome.perfetto_left_out),
        f"{'other ranks' if ranks else 'Perfetto'}: python scripts/report.py {run_dir} --perfetto FILE"
        " --ranks 0,1,2 (--host: host lanes)",
    )
