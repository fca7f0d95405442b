"""Commands that simulate nothing: ``report`` and ``compare`` finished runs, ``export-chakra`` a graph."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simcore.apps.options import Json

if TYPE_CHECKING:
    from simcore.analysis import StepAnalysis
    from simcore.graph import Graph
    from simcore.timeline import Timeline


def report(
    run_dir: Annotated[
        Path | None, typer.Argument(help="Run folder that a simulation wrote. Default: runs/latest.")
    ] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="List the runs in RUN_DIR (default: runs): folder, step, question.")
    ] = False,
    perfetto: Annotated[
        Path | None,
        typer.Option(help="Write a Perfetto file of --ranks: gzipped JSON, or packets (.pftrace)."),
    ] = None,
    kineto: Annotated[
        Path | None, typer.Option(help="Write --ranks as profiler traces (Kineto JSON, gzip), one file each.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the step of --ranks (.png, .svg or .pdf).")] = None,
    page: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write the run's page.")] = None,
    ranks: Annotated[
        str | None,
        typer.Option(metavar="0,8,16|0-7", help="Ranks to export. Default: the lowest of each stage."),
    ] = None,
    host: Annotated[
        bool,
        typer.Option("--host", help="Perfetto also shows the host's calls and waits; left out otherwise."),
    ] = False,
    path: Annotated[
        bool, typer.Option("--critical-path", help="Also say what the step time consists of.")
    ] = False,
    serve: Annotated[
        bool,
        typer.Option("--serve", help="Serve the page to this machine, with the trace for Perfetto's viewer."),
    ] = False,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Of --serve; Perfetto's viewer needs 9001.")
    ] = 9001,
    top: Annotated[int, typer.Option(min=1, help="Rows in the tables of kernels and communication.")] = 8,
    as_json: Json = False,
) -> None:
    """Summarise a run; with --perfetto, --kineto or --plot, also export it; with --list, list all."""
    import json

    from simcore.analysis import analyse, critical_path
    from simcore.apps.output import left_out_notes, print_summary, print_wide, summary_text
    from simcore.apps.run.question import LATEST, RUNS
    from simcore.report import (
        critical_path_tables,
        default_ranks,
        json_object,
        write_kineto,
        write_perfetto,
        write_plot,
    )
    from simcore.timeline import Timeline

    if listed:
        from simcore.apps.run.listing import kept_runs, run_lines

        runs = kept_runs(run_dir or RUNS)
        if as_json:
            print(json.dumps({"runs": [run.as_object() for run in runs]}))
        else:
            print(run_lines(runs) or f"no runs in {run_dir or RUNS}")
        return
    run_dir = run_dir or RUNS / LATEST
    timeline = Timeline.open(run_dir)
    info, analysis = timeline.info, analyse(timeline)
    chosen = _ranks(ranks) if ranks is not None else default_ranks(timeline, analysis.stage_of)
    notes = [f"run folder: {run_dir}"]
    if perfetto is not None:
        export = write_perfetto(timeline, perfetto, chosen, host=host)
        events = f"{export.num_events:,} events"
        notes.append(f"Perfetto (ui.perfetto.dev): {perfetto}, {events}, ranks: {len(chosen)}")
        notes += left_out_notes(export.left_out)
    if kineto is not None:
        notes += [f"profiler trace: {file}" for file in write_kineto(timeline, kineto, chosen)]
    if plot is not None:
        write_plot(timeline, plot, chosen)
        notes.append(f"picture: {plot}")
    if page is not None:
        from simcore.report.page import write_page

        write_page(timeline, analysis, page)
        notes.append(f"page: {page}")
    if serve:
        _serve(timeline, analysis, chosen, port)
        return
    if as_json:
        print(json.dumps(json_object(info, analysis, timeline.path, sum(info.wall_s.values()))))
    else:
        print_summary(summary_text(info, analysis, top), notes)
        if path:
            print_wide(critical_path_tables(critical_path(timeline), top=top))


def _serve(timeline: Timeline, analysis: StepAnalysis, ranks: list[int], port: int) -> None:
    """Serve a run's page and its trace."""
    import tempfile

    from simcore.apps.run.beside import PERFETTO_FILE
    from simcore.apps.run.serving import serve
    from simcore.report import write_perfetto
    from simcore.report.page import write_page

    with tempfile.TemporaryDirectory(prefix="simcore-serve-") as folder:
        page, trace = Path(folder) / "report.html", timeline.run_dir / PERFETTO_FILE
        write_page(timeline, analysis, page)
        if not trace.is_file():
            trace = Path(folder) / PERFETTO_FILE
            write_perfetto(timeline, trace, ranks)
        serve(page.read_text(encoding="utf-8"), trace, port)


def compare(
    run_a: Annotated[Path, typer.Argument(help="Run folder, the first.")],
    run_b: Annotated[Path, typer.Argument(help="Run folder, the second.")],
    top: Annotated[int, typer.Option(min=1, help="Rows in the table of ops.")] = 12,
    page: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page of both, side by side.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare two runs: inputs that differ, step time, breakdown, what explains it, ops, stages."""
    import json

    from simcore.analysis.comparison import compare_runs
    from simcore.apps.output import print_wide
    from simcore.report.comparison import comparison_object, comparison_tables
    from simcore.timeline import Timeline

    first, second = (Timeline.open(folder) for folder in (run_a, run_b))
    comparison = compare_runs(first, second)
    if page is not None:
        from simcore.report.page import write_comparison

        write_comparison(comparison, first, second, page)
    if as_json:
        print(json.dumps(comparison_object(comparison)))
    else:
        print_wide(comparison_tables(comparison, (str(run_a), str(run_b)), top=top))


def export_chakra(
    workload: Annotated[str, typer.Argument(help="A catalog name, or a folder with an execution graph.")],
    out: Annotated[Path, typer.Option(help="Folder for rank.N.et and comm_group.json.")],
    ranks: Annotated[str, typer.Option(help="Only these ranks, like 0,1,8-15; all when empty.")] = "",
    taker: Annotated[
        str,
        typer.Option("--for", metavar="chakra|astra-sim", help="astra-sim: nodes as ASTRA-sim plays them."),
    ] = "chakra",
    cluster: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE", help="Whose kernel times go to ASTRA-sim. Default: h800-96."),
    ] = None,
    kernels: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Kernels of which build (workload.kernels; default: the usual), or traced."
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """Write the execution graph of a workload as Chakra execution traces."""
    import json

    from simcore.apps.progress import StageTimer
    from simcore.errors import InputError, nearest
    from simcore.graph import apply_kernels, load_graph, usual_kernels
    from workloads import catalog
    from workloads.imports import chakra

    if taker not in ("chakra", "astra-sim"):
        raise InputError(f"--for {taker!r}: chakra or astra-sim{nearest(taker, ('chakra', 'astra-sim'))}")
    if cluster is not None and taker == "chakra":
        raise InputError("--cluster needs --for astra-sim: otherwise durations are those that are recorded")
    graph = load_graph(workload) if Path(workload).is_dir() else catalog.load(workload)
    kernels = kernels or usual_kernels(graph)
    graph = graph if kernels == "traced" else apply_kernels(graph, kernels)
    chosen = set(_ranks(ranks)) if ranks else None
    alone_ps = None
    if taker == "astra-sim":
        alone_ps = _alone(graph, kernels, cluster)
    with StageTimer().stage("writing ranks") as update:
        nodes = chakra.export_chakra(graph, out, ranks=chosen, progress=update, astra_sim_ps=alone_ps)
    count = graph.world_size if chosen is None else len(chosen)
    told = {"folder": str(out), "ranks": count, "nodes": nodes, "kernels": kernels}
    build = "ops as traced" if kernels == "traced" else f"kernels as a {kernels!r} build launches them"
    print(json.dumps(told) if as_json else f"{count} ranks, {nodes:,} nodes in {out}: {build}")


def _alone(graph: Graph, kernels: str, cluster_name: str | None) -> list[int]:
    """How long each row lasts alone, ps.  InputError for a cluster that is too small."""
    import numpy as np

    from simcore.apps.run.edits import traced_job
    from simcore.apps.run.loading import check_world
    from simcore.hardware import DEFAULT_CLUSTER, load_cluster
    from workloads.edits.kernels.times import alone_times

    cluster = load_cluster(cluster_name or DEFAULT_CLUSTER, {})
    check_world(graph, cluster)
    job = traced_job(graph, cluster, "" if kernels == "traced" else kernels, "ieee")
    return list(map(int, alone_times(job, np.ones(len(graph.ops), dtype=np.bool_))))


_MOST_RANKS = 1 << 20


def _ranks(text: str) -> list[int]:
    """``"0,8,16-19"`` as rank numbers, in that order.  InputError for anything else."""
    from simcore.errors import InputError

    ranks: dict[int, None] = {}
    for part in text.split(","):
        first, dash, last = (piece.strip() for piece in part.partition("-"))
        bounds = [first, last] if dash else [first, first]
        if not all(bound.isascii() and bound.isdecimal() and len(bound) < 9 for bound in bounds):
            raise InputError(f"--ranks {text[:80]!r}: expected numbers and ranges, such as 0,8,16-19")
        start, stop = map(int, bounds)
        if not 0 <= stop - start < _MOST_RANKS - len(ranks):
            why = "ends before it begins" if stop < start else "is too long"
            raise InputError(f"--ranks {text[:80]!r}: {part[:40]!r} {why}; such as 0,8,16-19")
        ranks.update(dict.fromkeys(range(start, stop + 1)))
    return list(ranks)
