"""What a replay shows: the JSON object, the tables, and a run folder to report, compare and export."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from textwrap import wrap
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from simcore.analysis import analyse
from simcore.apps.replay.explain import Contribution, by_stream
from simcore.apps.replay.insight import StepInsight, Utilisation
from simcore.apps.replay.play import Replay, ReplayedStep
from simcore.apps.run.beside import PERFETTO_FILE
from simcore.apps.run.question import RunQuestion, digest, run_folder
from simcore.graph import Graph, graph_hash
from simcore.hardware import hardware_hash
from simcore.report import default_ranks, write_perfetto
from simcore.report.asked import WIDTH
from simcore.report.summary_tables import number_table
from simcore.timeline import RunFacts, RunInfo, write_tables
from simcore.units import PS_PER_S, PS_PER_US, format_time, s_from_ps
from workloads.imports import ImportedJob

_LONGEST_NAME = 60
#: Parts of a step as columns name them.
_IN_SHORT = {"exposed_compute": "compute", "exposed_communication": "comm."}


def replay_object(
    job: ImportedJob,
    steps: list[ReplayedStep],
    insights: list[StepInsight],
    *,
    series: bool = False,
    explained: bool = False,
) -> dict[str, Any]:
    """The JSON object of a replay.

    Each step also holds what it consists of; ``series`` adds SM utilisation per ms, ``explained`` the
    contributions to the difference of the spans.  Where an edit made a rank of several, nothing was recorded
    of it: ``recorded_s`` is 0 and ``error`` null.
    """
    rows = []
    for row, insight in zip(steps, insights, strict=True):
        shown: dict[str, Any] = {
            "rank": row.rank,
            "step": row.step,
            "recorded_s": row.recorded.span,
            "predicted_s": row.replayed.span,
            "error": row.error if row.recorded.span else None,
            "breakdown_s": row.replayed.parts(),
            "recorded_breakdown_s": row.recorded.parts(),
        }
        rows.append(shown | _insight_object(insight, series, explained))
    return {"steps": rows, "import_report": job.report.as_object()}


def _insight_object(insight: StepInsight, series: bool, explained: bool) -> dict[str, Any]:
    recorded, replayed = insight.kernel_time
    sms = insight.sms
    found: dict[str, Any] = {
        "kernel_time_s": replayed,
        "recorded_kernel_time_s": recorded,
        "sm_utilisation": _sms_object(sms[1], series) if sms is not None else None,
        "recorded_sm_utilisation": _sms_object(sms[0], series) if sms is not None else None,
        "critical_path_s": insight.path,
        "host_bound_share": insight.host_bound_share,
    }
    if explained:
        found["contributions"] = [
            {
                "name": entry.name,
                "stream": entry.stream,
                "calls": entry.calls,
                "work_difference_s": s_from_ps(entry.work_difference_ps),
                "wait_difference_s": s_from_ps(entry.wait_difference_ps),
            }
            for entry in insight.contributions
        ]
    return found


def _sms_object(sms: Utilisation, series: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"mean": sms.mean, "peak": sms.peak}
    return {**found, "per_ms": [round(value, 4) for value in sms.series.tolist()]} if series else found


def replay_tables(
    replay: Replay,
    steps: list[ReplayedStep],
    insights: list[StepInsight],
    *,
    explained: bool = False,
    top: int = 10,
) -> RenderableType:
    """Tables of a replay for a terminal; ``explained`` adds what makes the spans differ."""
    parts: list[RenderableType] = [_spans(steps), _kernels(steps, insights), _paths(steps, insights)]
    if explained:
        parts += [_explanation(row, found, top) for row, found in zip(steps, insights, strict=True)]
    if replay.notes:
        parts += ["Assumed:", *(f"- {note}" for note in replay.notes)]
    doubts = [f"- {doubt}" for doubt in replay.doubts()]
    return Group(*parts, *(["What the traces do not show:", *doubts] if doubts else []))


def _name(row: ReplayedStep) -> str:
    return str(row.step) if row.step >= 0 else "all"


def _spans(steps: list[ReplayedStep]) -> Table:
    """Two rows a step: as replayed, and as recorded where that is known."""
    parts = [_IN_SHORT.get(name, name.replace("_", " ")) for name in steps[0].recorded.parts()]
    table = number_table("rank and step", ("span", "error", *parts))
    for row in steps:
        told = row.recorded.span > 0
        times = [row.replayed.span, *row.replayed.parts().values()]
        shown = [format_time(time * PS_PER_S) for time in times]
        error = f"{row.error:+.2%}" if told else "-"
        table.add_row(f"{row.rank}, {_name(row)}", shown[0], error, *shown[1:])
        if told:
            recorded = [row.recorded.span, *row.recorded.parts().values()]
            shown = [format_time(time * PS_PER_S) for time in recorded]
            table.add_row("  recorded", shown[0], "", *shown[1:])
    return table


def _kernels(steps: list[ReplayedStep], insights: list[StepInsight]) -> Table:
    totals: dict[str, list[float]] = {}
    for insight in insights:
        for side, times in enumerate(insight.kernel_time):
            for category, seconds in times.items():
                totals.setdefault(category, [0.0, 0.0])[side] += seconds / len(steps)
    table = number_table("kernel time by category, mean of the steps", ("replayed", "recorded"))
    for category, (recorded, replayed) in sorted(totals.items(), key=lambda item: -item[1][1]):
        table.add_row(category, format_time(replayed * PS_PER_S), format_time(recorded * PS_PER_S))
    return table


def _paths(steps: list[ReplayedStep], insights: list[StepInsight]) -> Text:
    """What the critical path of each step consists of, and the SMs in use."""
    lines = ["critical path, share of the step; SMs in use, mean (recorded) and peak per ms"]
    for row, insight in zip(steps, insights, strict=True):
        span = sum(insight.path.values()) or 1.0
        shares = ", ".join(f"{kind} {time / span:.1%}" for kind, time in insight.path.items())
        sms = insight.sms
        used = f"; SMs {sms[1].mean:.1%} ({sms[0].mean:.1%}), peak {sms[1].peak:.1%}" if sms else ""
        lines += wrap(
            f"  rank {row.rank}, step {_name(row)}: {shares}{used}", WIDTH, subsequent_indent="    "
        )
    return Text("\n".join(lines))


def _explanation(row: ReplayedStep, insight: StepInsight, top: int) -> RenderableType:
    difference = row.replayed.span - row.recorded.span
    title = f"rank {row.rank}, step {_name(row)}: {1e6 * difference:+.1f} us, by op on the critical path"
    if not insight.contributions:
        return Text(f"{title}: nothing differs")
    table = number_table("op", ("stream", "calls", "works longer, us", "waits longer, us"))
    shown, rest = insight.contributions[:top], insight.contributions[top:]
    for entry in shown:
        table.add_row(_short(entry.name), entry.stream, str(entry.calls), *_differences(entry))
    if rest:
        other = Contribution(f"{len(rest)} others", "")
        for entry in rest:
            other.calls += entry.calls
            other.work_ps[1] += entry.work_difference_ps
            other.wait_ps[1] += entry.wait_difference_ps
        table.add_row(other.name, "", str(other.calls), *_differences(other))
    streams = ", ".join(
        f"{stream} {(work + wait) / PS_PER_US:+.1f}"
        for stream, (work, wait) in by_stream(insight.contributions).items()
        if stream
    )
    return Group(Text(title), table, Text(f"by stream, us: {streams}"))


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 3] + "..."


def _differences(entry: Contribution) -> tuple[str, str]:
    return f"{entry.work_difference_ps / PS_PER_US:+.1f}", f"{entry.wait_difference_ps / PS_PER_US:+.1f}"


def write_replay(
    out_dir: Path, replay: Replay, settings: Mapping[str, str], asked: str = "", *, force: bool = False
) -> RunInfo:
    """Write the replay to ``out_dir``, atomically, with a Perfetto file of its ranks.

    ``settings`` say how it was made, ``asked`` is the question as text; ``force``: also over the answer to
    another.  The steps of a recording are one run; ``run.json`` says which ops
    belong to which (``workload.options.steps``: first and last op_id).
    Errors: InputError when ``out_dir`` is something else than a run folder.
    """
    graph, cluster = _with_steps(replay), replay.cluster
    hashes = {"graph": graph_hash(replay.graph), "cluster": hardware_hash(cluster)}
    asked = asked or f"replay {replay.graph.workload.name}"
    question = RunQuestion(asked, digest({**hashes, "settings": dict(settings), "network": replay.network}))
    facts = RunFacts(
        cluster=dataclasses.asdict(cluster),
        network=replay.network,
        graph_hash=hashes["graph"],
        profile_hash=hashes["cluster"],
        settings=dict(settings),
        asked=question.text,
        question=question.key,
        memory=(),
        origins={name: share for name, share in replay.origins.items() if share},
        assumptions=("a replay: ops are those of a recording", *replay.notes),
        warnings=tuple(replay.doubts()),
    )
    with run_folder(out_dir, question, force=force) as folder:
        timeline = write_tables(folder, graph, replay.result, facts)
        write_perfetto(timeline, folder / PERFETTO_FILE, default_ranks(timeline, analyse(timeline).stage_of))
    return timeline.info


def _with_steps(replay: Replay) -> Graph:
    """The graph that was played, its workload saying where the recorded steps are."""
    steps = [
        {
            "rank": replay.rank_of[index],
            "step": max(step.number, 0),
            "first_op": int(rank.flat[members].min()),
            "last_op": int(rank.flat[members].max()),
        }
        for index, rank in enumerate(replay.job.ranks)
        for step, members in zip(rank.steps, rank.step_ops, strict=True)
    ]
    workload = replay.graph.workload
    options = {**workload.options, "steps": steps}
    return dataclasses.replace(replay.graph, workload=dataclasses.replace(workload, options=options))
