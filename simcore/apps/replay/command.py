"""``replay``: recorded profiler traces played back by the engine, step by step beside the recording."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simcore.apps.options import Edits, Force, Interference, Json

if TYPE_CHECKING:
    from simcore.apps.progress import StageTimer
    from workloads.imports import ImportedJob


def replay(
    traces: Annotated[list[Path], typer.Argument(help="Trace files (.json, .json.gz, .tar.gz) or folders.")],
    step: Annotated[int | None, typer.Option(help="Only this step (its ProfilerStep number).")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Go on without files that are bad.")] = False,
    gaps: Annotated[
        str, typer.Option(help="Launch latencies and gaps between kernels: 'recorded', or 'typical' for all.")
    ] = "recorded",
    edits: Edits = None,
    level: Annotated[
        str,
        typer.Option(
            metavar="recorded|communication|shapes",
            help="What is predicted anew: nothing but waits; collectives on a simulated network; kernels with"
            " recorded shapes too.",
        ),
    ] = "recorded",
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Cluster profile for the levels communication and shapes, and of edits that ask what was"
            " recorded on. Default: the recorded GPU's.",
        ),
    ] = None,
    interference: Interference = "shared",
    explain: Annotated[
        bool, typer.Option("--explain", help="Say which ops, streams and waits make the spans differ.")
    ] = False,
    sm_series: Annotated[
        bool, typer.Option("--sm-series", help="With --json: SM utilisation per 1 ms, step by step.")
    ] = False,
    force: Force = False,
    out: Annotated[
        Path | None, typer.Option(help="Also write a run folder, for report, compare and Perfetto.")
    ] = None,
    kineto: Annotated[
        Path | None, typer.Option(help="Also write the replay as profiler traces (JSON, gzip); needs --out.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Replay recorded traces and compare with the recording."""
    import json
    from dataclasses import replace

    from simcore.apps.output import print_wide
    from simcore.apps.progress import StageTimer
    from simcore.apps.replay.edits import edit_recording
    from simcore.apps.replay.insight import step_insights
    from simcore.apps.replay.levels import play_level
    from simcore.apps.replay.play import check_typical_gaps
    from simcore.apps.replay.show import replay_object, replay_tables, write_replay
    from simcore.apps.replay.stragglers import analyse_stragglers, straggler_tables
    from simcore.apps.run.edits import edit_table
    from simcore.apps.run.loading import chosen_interference
    from simcore.errors import InputError
    from simcore.hardware import forced, load_cluster
    from simcore.report import write_kineto
    from simcore.timeline import Timeline
    from workloads.imports import import_traces

    if kineto is not None and out is None:
        raise InputError("--kineto is written from a run folder: name one with --out")
    learned = chosen_interference(interference)
    if learned is not None and level == "recorded":
        raise InputError(
            "--interference needs --level communication or shapes: durations are the recorded ones"
        )
    stages = StageTimer()
    with stages.stage("reading traces"):
        job = import_traces(traces, skip_bad=skip_bad, gaps=gaps)
    if not job.ranks:
        recorded_only = {
            "--step": step is not None, "--edit": bool(edits), "--level": level != "recorded",
            "--gaps": gaps != "recorded", "--explain": explain, "--sm-series": sm_series,
            "--kineto": kineto is not None,
        }  # fmt: skip
        given = [option for option, was_given in recorded_only.items() if was_given]
        if given:
            missing = "; ".join(job.report.missing)
            raise InputError(f"{', '.join(given)}: there is no recorded step in what is given: {missing}")
        _play_untimed(job, cluster, out, as_json, stages, force=force)
        return
    if gaps == "typical":
        with stages.stage("checking gaps"):
            check_typical_gaps(job)
    stragglers = analyse_stragglers(job)
    with stages.stage("editing"):
        job, changes = edit_recording(job, edits or (), step, level, cluster, force=force)
    with stages.stage("replaying"):
        on = None if edits and level == "recorded" else cluster  # then it is what edits ask for
        replayed = play_level(job, level, on, learned, force=force)
        if force and cluster is not None:
            taken = forced(load_cluster(cluster, force=True))
            replayed = replace(replayed, notes=(*taken, *replayed.notes))
        steps = replayed.steps(step)
    with stages.stage("finding critical paths"):
        insights = step_insights(replayed, steps)
    if out is not None:
        with stages.stage("writing"):
            asked = " ".join(["replay", *map(str, traces), f"--level {level}"])
            asked += "".join(f" --edit {edit}" for edit in edits or ())
            write_replay(out, replayed, {"gaps": gaps, "level": level}, asked, force=force)
            if kineto is not None:
                write_kineto(Timeline.open(out), kineto, range(len(job.ranks)))
    if as_json:
        found = replay_object(job, steps, insights, series=sm_series, explained=explain)
        shown = {**found, "edits": [change.as_object() for change in changes]}
        if stragglers is not None:
            shown["stragglers"] = stragglers.as_object()
        print(json.dumps(shown))
    else:
        print_wide(replay_tables(replayed, steps, insights, explained=explain))
        if stragglers is not None:
            print_wide(straggler_tables(stragglers))
        if changes:
            print_wide(edit_table(changes))


def _play_untimed(
    job: ImportedJob,
    cluster: str | None,
    out: Path | None,
    as_json: bool,
    stages: StageTimer,
    *,
    force: bool,
) -> None:
    """Play files without start times, and print the simulated step."""
    import json

    from simcore.apps.output import answered_line, print_summary, summary_text
    from simcore.apps.replay.untimed import play_untimed
    from simcore.report import json_object
    from simcore.timeline.schema import TIMELINE_FILE

    asked = f"replay {job.graph.workload.name}"
    played = play_untimed(job, cluster, out, stages, asked, force=force)
    if as_json:
        shown = json_object(played.info, played.analysis, (out or Path()) / TIMELINE_FILE, played.wall_s)
        print(json.dumps(shown if out is not None else {**shown, "timeline": ""}))
        return
    answered = answered_line(played.answered, played.info.engine_events)
    print_summary(
        summary_text(played.info, played.analysis), [f"simulated in {played.wall_s:.1f} s: {answered}"]
    )
